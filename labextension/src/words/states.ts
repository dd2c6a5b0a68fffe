/** Where a kernel's GPU memory is, in the words that everything uses. */

import { IKeptKernel, IKernel, INode, IOthers, Residency } from '../status';
import { basename, bytes, clockIn, isolated, IWords, place, seconds, span } from './figures';

const SMALL = 64 * 1024 ** 2; // host memory is taken in slabs: less is not worth a word

/** All bytes that a kernel has on GPUs, also those that cannot move. */
export function onGpu(kernel: IKernel): number {
  return kernel.unmovable.reduce((sum, unmovable) => sum + unmovable.bytes, kernel.resident_bytes);
}

/** A state's name: "On the GPU", "GPU freed", "Waiting". */
export function stateName(residency: Residency, trans: IWords): string {
  switch (residency) {
    case 'none':
      return trans.__('No GPU used');
    case 'resident':
      return trans.__('On the GPU');
    case 'parking':
      return trans.__('Freeing');
    case 'parked':
      return trans.__('GPU freed');
    case 'queued':
      return trans.__('Waiting');
    case 'resuming':
      return trans.__('Getting it back');
    case 'lost':
      return trans.__('GPU state lost');
    case 'hibernated':
      return trans.__('Hibernated');
    default:
      return trans.__('On the GPU or freed'); // of a newer server
  }
}

/** A state with its size or place: "On the GPU: 12 GiB", "GPU freed, 12 GiB safe in RAM", "Waiting: 2nd". */
export function stateText(kernel: IKernel, trans: IWords): string {
  const state = stateName(kernel.residency, trans);
  switch (kernel.residency) {
    case 'none':
      return isOtherVersion(kernel) ? trans.__('Not managed') : state;
    case 'resident':
      return onGpu(kernel) > 0
        ? trans.__('%1: %2', state, bytes(onGpu(kernel)))
        : trans.__('No GPU memory in use');
    case 'parked':
      return trans.__('%1, %2', state, safeText(kernel, trans));
    case 'queued':
      return kernel.place ? trans.__('%1: %2', state, place(kernel.place, trans)) : state;
    case 'hibernated':
      return hibernatedText(kernel, trans);
    default:
      return state;
  }
}

/** "Hibernated · 12 GiB on disk · back in about 9 s", "Hibernating · 3 GiB on disk", "Waking". */
function hibernatedText(kernel: IKernel, trans: IWords): string {
  const { hibernation, image_bytes } = kernel;
  const size = hibernation?.state ? hibernation.bytes : (image_bytes ?? 0);
  const onDisk = size > 0 ? trans.__('%1 on disk', bytes(size)) : '';
  const parts = {
    hibernating: [hibernationName(kernel, trans), onDisk],
    waking: [hibernationName(kernel, trans)],
    hibernated: [hibernationName(kernel, trans), onDisk, backText(kernel, trans)]
  }[hibernation?.state ?? 'hibernated'];
  return parts.filter(part => part !== '').join(' · ');
}

function backText({ hibernation }: IKernel, trans: IWords): string {
  return hibernation ? trans.__('back in about %1', seconds(hibernation.estimate_s, trans)) : '';
}

/** "Hibernated", and on its way: "Hibernating", "Waking". */
function hibernationName({ hibernation }: IKernel, trans: IWords): string {
  switch (hibernation?.state) {
    case 'hibernating':
      return trans.__('Hibernating');
    case 'waking':
      return trans.__('Waking');
    default:
      return trans.__('Hibernated');
  }
}

/** Why a kernel did not hibernate, or could not be woken, the last time; null where nothing was refused. */
export function hibernationRefusal({ hibernation }: IKernel, trans: IWords): string | null {
  if (!hibernation?.refusal) {
    return null;
  }
  return hibernation.state === 'hibernated'
    ? trans.__('Not woken: %1', hibernation.refusal)
    : trans.__('Not hibernated: %1', hibernation.refusal);
}

/** What a user must know of an image: that it is about to be deleted, and why it could not be woken now. */
export function imageWarnings(
  image: Pick<IKeptKernel, 'deleted_at' | 'objection'> | null,
  trans: IWords
): string[] {
  const warnings: string[] = [];
  if (image?.deleted_at) {
    warnings.push(trans.__('Deleted at %1 unless it is woken before', image.deleted_at));
  }
  if (image?.objection) {
    warnings.push(trans.__('Cannot be woken now: %1', image.objection));
  }
  return warnings;
}

/** Whether it computes without a controller: it, or the controller, is from before an upgrade. */
function isOtherVersion({ refusal_code }: IKernel): boolean {
  return refusal_code === 'older-kernel' || refusal_code === 'older-controller';
}

/** Where parked memory is: "12 GiB safe in RAM", "12 GiB safe on disk", "12 GiB safe, 4 GiB of it on disk". */
function safeText(kernel: IKernel, trans: IWords): string {
  const all = bytes(kernel.parked_bytes);
  const { disk_bytes, parked_bytes } = kernel;
  if (disk_bytes <= 0) {
    return trans.__('%1 safe in RAM', all);
  }
  return disk_bytes >= parked_bytes
    ? trans.__('%1 safe on disk', all)
    : trans.__('%1 safe, %2 of it on disk', all, bytes(disk_bytes));
}

/** What a kernel that no notebook shows is called: its notebook, else its kernel. */
export function keptTitle({ name, path }: IKeptKernel, trans: IWords): string {
  return path === null ? (name ?? trans.__('Kernel without a notebook')) : isolated(basename(path));
}

/** Since when it ran without a server, and for which server it is kept: "its server ended at 13:11 CET". */
export function keptForText(kernel: IKeptKernel, trans: IWords): string {
  const { folder, here, image_bytes, server, since } = kernel;
  if (image_bytes !== null) {
    return trans.__('hibernated at %1, %2 on disk', since, bytes(image_bytes));
  }
  if (here) {
    return trans.__('its server ended at %1', since);
  }
  return server === null
    ? trans.__('since %1 for a server in %2', since, folder)
    : trans.__('since %1 for the server %2 in %3', since, server, folder);
}

/** "Other users: 3 kernels, 40 GiB on the GPU, 12 GiB freed, 1 waiting"; null where they have none. */
export function othersText(others: IOthers | null, trans: IWords): string | null {
  if (!others || others.kernels === 0) {
    return null;
  }
  const { kernels, parked_bytes, resident_bytes, waiting } = others;
  const parts = [
    trans._n('%1 kernel', '%1 kernels', kernels),
    trans.__('%1 on the GPU', bytes(resident_bytes)),
    parked_bytes > 0 ? trans.__('%1 freed', bytes(parked_bytes)) : null,
    waiting > 0 ? trans.__('%1 waiting', waiting) : null
  ];
  return trans.__('Other users: %1', parts.filter(part => part !== null).join(', '));
}

/** What a lost GPU state means, and what helps. */
export function lostText(trans: IWords): string {
  return trans.__('What it had on the GPU is gone. Restart the kernel to use the GPU again.');
}

/** Until when a kernel is kept: "kept until 13:11 CET"; null where it is not. */
export function keptText(kernel: IKernel, trans: IWords): string | null {
  return kernel.held_for_s === null
    ? null
    : trans.__('kept until %1', kernel.held_until ?? clockIn(kernel.held_for_s));
}

/** The chip's few words; empty where no GPU is used. */
export function chipLabel(kernel: IKernel, trans: IWords): string {
  switch (kernel.residency) {
    case 'none':
      return '';
    case 'resident':
      return stateText(kernel, trans);
    case 'hibernated':
      return hibernationName(kernel, trans);
    default:
      return stateName(kernel.residency, trans);
  }
}

/** A kernel whose clocks have run on for some seconds since its figures were true. */
export function aged(kernel: IKernel, seconds: number): IKernel {
  const up = (clock: number | null) => (clock === null ? null : clock + seconds);
  const down = (clock: number | null) => (clock === null ? null : Math.max(0, clock - seconds));
  return {
    ...kernel,
    idle_s: up(kernel.idle_s),
    waiting_s: up(kernel.waiting_s),
    held_for_s: down(kernel.held_for_s),
    eligible_in_s: down(kernel.eligible_in_s),
    estimate_s: down(kernel.estimate_s)
  };
}

/**
 * When an idle kernel's memory is freed: "may be freed in 1:48" where time alone decides, by the policy or since a kernel
 * waits; else "stays until another notebook needs the room". Null where it is not idle, or kept. `said` puts seconds into words.
 */
export function freedText(
  kernel: IKernel,
  node: Pick<INode, 'policy' | 'queue'> | null | undefined,
  said: (seconds: number) => string,
  trans: IWords
): string | null {
  const { cell_open, eligible, eligible_in_s, held_for_s, residency } = kernel;
  const isIdle = eligible || (eligible_in_s !== null && !cell_open);
  if (residency !== 'resident' || held_for_s !== null || !isIdle) {
    return null;
  }
  if (node?.policy?.park_when !== 'idle' && !node?.queue.length) {
    return trans.__('stays until another notebook needs the room');
  }
  return eligible || !eligible_in_s
    ? trans.__('may be freed now')
    : trans.__('may be freed in %1', said(eligible_in_s));
}

/** What is worth knowing beside the state and the wait: how long idle, kept or waiting, and what happens next. */
export function details(
  kernel: IKernel,
  node: Pick<INode, 'policy' | 'queue'> | null | undefined,
  trans: IWords
): string[] {
  const lines: string[] = [];
  const kept = keptText(kernel, trans);
  if (kept !== null) {
    lines.push(kept);
  }
  if (kernel.residency === 'queued' && kernel.waiting_s !== null) {
    lines.push(trans.__('waiting %1', span(kernel.waiting_s, trans)));
  }
  if (kernel.residency === 'resident' || kernel.residency === 'parked') {
    if (kernel.cell_open) {
      lines.push(trans.__('a cell is running'));
    } else if (kernel.idle_s !== null) {
      lines.push(trans.__('idle %1', span(kernel.idle_s, trans)));
    }
  }
  const freed = freedText(kernel, node, left => span(left, trans), trans);
  return [...lines, freed, hostMemory(kernel, trans)].filter(line => line !== null);
}

/** What a kernel has in RAM, where its size on the GPU does not say it already. */
export function hostMemory(kernel: IKernel, trans: IWords): string | null {
  const { copy_bytes, disk_bytes, retained_bytes, shared_bytes, last_park, parked_bytes } = kernel;
  if (kernel.residency === 'parked' && shared_bytes > SMALL) {
    return trans.__(
      'takes %1 of RAM alone, and %2 together with other kernels',
      bytes(copy_bytes),
      bytes(shared_bytes)
    );
  }
  if (kernel.residency === 'parked' && copy_bytes < parked_bytes - disk_bytes - SMALL) {
    return trans.__('takes %1 of RAM, the rest is zeros', bytes(copy_bytes));
  }
  if (kernel.residency === 'resident' && last_park && retained_bytes > SMALL) {
    return trans.__('%1 of RAM kept for the next time', bytes(retained_bytes));
  }
  if (kernel.residency === 'resident' && kernel.set_aside_bytes > SMALL) {
    return trans.__('%1 of RAM set aside in advance', bytes(kernel.set_aside_bytes));
  }
  return null;
}
