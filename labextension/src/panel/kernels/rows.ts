/** Which kernels are shown, in which section and order, and by which names. Pure. */

import { canRestart, endable } from '../../actions';
import { IKernel, ownership } from '../../status';
import { IWords, title } from '../../words';

/** The panel's sections, in their order. */
export const SECTIONS = [
  'problems',
  'waiting',
  'resident',
  'freed',
  'elsewhere',
  'others',
  'none'
] as const;

/** A section: what only the user can mend, this server's kernels by state, the user's others, those of other users. */
export type SectionId = (typeof SECTIONS)[number];

/** From this number of kernels on, rows are lower and sections without news are closed at first. */
export const MANY = 12;

/** What is to be shown. */
export interface IFilter {
  text: string;
  /** This server's kernels alone. */
  here: boolean;
}

/** A kernel's place, by what it needs, whose it is and where its GPU memory is. */
function sectionOf(kernel: IKernel): SectionId {
  if (canRestart(kernel) || endable(kernel).length > 0) {
    return 'problems';
  }
  const owner = ownership(kernel);
  if (owner !== 'here') {
    return owner;
  }
  switch (kernel.residency) {
    case 'queued':
      return 'waiting';
    case 'parked':
    case 'parking':
    case 'hibernated':
      return 'freed';
    case 'none':
      return 'none';
    default:
      return 'resident';
  }
}

/** A section's heading. */
export function sectionTitle(section: SectionId, trans: IWords): string {
  switch (section) {
    case 'problems':
      return trans.__('Needs you');
    case 'waiting':
      return trans.__('Waiting');
    case 'resident':
      return trans.__('On the GPU');
    case 'freed':
      return trans.__('Freed');
    case 'elsewhere':
      return trans.__('Elsewhere');
    case 'others':
      return trans.__('Other users');
    case 'none':
      return trans.__('Not using the GPU');
  }
}

/** The kernels of each section in an order that does not jump: by place where they wait, else by name. */
export function sections(
  kernels: IKernel[],
  filter: IFilter,
  trans: IWords
): Map<SectionId, IKernel[]> {
  const found = new Map<SectionId, IKernel[]>(SECTIONS.map(section => [section, []]));
  for (const kernel of kernels.filter(kernel => isShown(kernel, filter, trans))) {
    found.get(sectionOf(kernel))?.push(kernel);
  }
  const names = new Map(kernels.map(kernel => [kernel.id, sortName(kernel, trans)]));
  const byName = (a: IKernel, b: IKernel) =>
    (names.get(a.id) ?? '').localeCompare(names.get(b.id) ?? '');
  found.forEach((shown, section) =>
    shown.sort(
      section === 'waiting'
        ? (a, b) => (a.place ?? Infinity) - (b.place ?? Infinity) || byName(a, b)
        : byName
    )
  );
  return found;
}

/**
 * The same kernels where they were shown: each keeps its section and its place, also one that has ended meanwhile; new ones
 * come last in theirs.
 */
export function inPlace(
  shown: ReadonlyMap<SectionId, IKernel[]>,
  now: ReadonlyMap<SectionId, IKernel[]>
): Map<SectionId, IKernel[]> {
  const kernels = new Map([...now.values()].flat().map(kernel => [kernel.id, kernel]));
  const before = new Set([...shown.values()].flat().map(({ id }) => id));
  return new Map(
    SECTIONS.map(section => [
      section,
      [
        ...(shown.get(section) ?? []).map(kernel => kernels.get(kernel.id) ?? kernel),
        ...(now.get(section) ?? []).filter(({ id }) => !before.has(id))
      ]
    ])
  );
}

function isShown(kernel: IKernel, filter: IFilter, trans: IWords): boolean {
  if (filter.here && !kernel.own) {
    return false;
  }
  const wanted = filter.text.trim().toLowerCase();
  if (wanted === '') {
    return true;
  }
  const names = [title(kernel, trans), kernel.path ?? '', ...kernel.paths, kernel.name ?? ''];
  return names.some(name => name.toLowerCase().includes(wanted));
}

function sortName(kernel: IKernel, trans: IWords): string {
  return `${title(kernel, trans)}\0${kernel.path ?? ''}\0${kernel.id}`;
}

/** Whether something is wrong that the user should read without asking. */
export function isProblem(kernel: IKernel): boolean {
  return (
    kernel.residency === 'lost' ||
    (kernel.own && kernel.refusal_code !== null && kernel.residency === 'resident') ||
    kernel.processes.some(process => process.stuck !== null)
  );
}

/** Whether a section is open before the user says anything: among many kernels, only those with news. */
export function isOpenAtFirst(section: SectionId, kernels: number): boolean {
  return kernels <= MANY || !['elsewhere', 'others', 'none'].includes(section);
}
