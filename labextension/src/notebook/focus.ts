import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { AffinodeError } from '../api';
import { kernelIdOf } from '../shell/openKernel';
import { IKernel } from '../status';
import { IAffinode } from '../tokens';

/** The controller expects the use of a kernel for so long after it was announced. */
const EXPECTED_MS = 30_000;

/** Tells the controller which notebook's kernel is about to be used, so that it may come back early. */
export const focusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:focus',
  description: 'Tells the GPU controller which notebook is turned to or typed in.',
  autoStart: true,
  requires: [IAffinode, INotebookTracker],
  activate: (_: JupyterFrontEnd, affinode: IAffinode, notebooks: INotebookTracker): void => {
    const announce = (id: string): void => {
      affinode.act(id, 'focus').catch((error: unknown) => {
        if (!(error instanceof AffinodeError)) {
          throw error; // a refusal costs nothing: it is only a hint
        }
      });
    };
    /** When the use of a kernel was announced that has been parked ever since. */
    const announced = new Map<string, number>();
    affinode.changed.connect(() => {
      for (const id of announced.keys()) {
        if (!isAway(affinode.kernel(id))) {
          announced.delete(id);
        }
      }
    });

    notebooks.currentChanged.connect((_, panel) => {
      const id = kernelIdOf(panel);
      if (id !== undefined && affinode.kernel(id)?.own) {
        announce(id);
      }
    });

    /** A kernel that has its GPU memory needs no announcement, one that stays parked none at each key. */
    const announceParked = (): void => {
      const id = kernelIdOf(notebooks.currentWidget);
      const kernel = id === undefined ? undefined : affinode.kernel(id);
      if (!kernel?.own || !isAway(kernel)) {
        return;
      }
      const last = announced.get(kernel.id);
      if (last === undefined || performance.now() - last > EXPECTED_MS) {
        announced.set(kernel.id, performance.now());
        announce(kernel.id);
      }
    };
    window.addEventListener('focus', announceParked);
    document.addEventListener(
      'keydown',
      event => {
        const isShortcut = event.ctrlKey || event.metaKey || event.altKey || event.key === 'Shift';
        const notebook = notebooks.currentWidget?.content.node;
        if (!isShortcut && notebook?.contains(event.target as Node | null)) {
          announceParked();
        }
      },
      true // before the editor, which keeps what it takes
    );
  }
};

/** Whether its memory is not on the GPU, so that it takes a while to be back. */
function isAway(kernel: IKernel | undefined): boolean {
  return kernel?.residency === 'parked' || kernel?.hibernation?.state === 'hibernated';
}
