import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { IKernel, INode, ownership } from '../status';
import { IAffinode } from '../tokens';
import { NameOf } from '../words';

/** What every part of the panel draws from. */
export interface IView {
  affinode: IAffinode;
  commands: CommandRegistry;
  /** The machine. */
  node: INode;
  /** The folder that tells a notebook, by its path, from others of its name. */
  folderOf: (path: string) => string | undefined;
  /** A kernel's name in sentences about another. */
  nameOf: NameOf;
  /** The largest rate of CUDA calls of any kernel, so that lines can be compared. */
  mostCalls: number;
  /** Whether the panel can be seen: what asks the server while it is there must not ask otherwise. */
  isVisible: boolean;
  /** Whether what is shown is from before; clocks stand still then. */
  isStale: boolean;
  trans: TranslationBundle;
}

/** The style class of a kernel's hue; the style sheet has eight. */
export function hueClass(hue: number): string {
  return `jp-mod-hue${hue % 8}`;
}

/** The style class of a kernel's swatch. */
export function swatchClass(kernel: IKernel, affinode: IAffinode): string {
  if (kernel.residency === 'none') {
    return 'jp-mod-absent';
  }
  return ownership(kernel) === 'others' ? 'jp-mod-others' : hueClass(affinode.hue(kernel.id));
}
