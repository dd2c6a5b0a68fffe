import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Throttler } from '@lumino/polling';
import { AffinodeError } from './api';
import { IAffinode } from './tokens';

/** A person who types announces the same again and again. */
const TYPING_PAUSE_MS = 5000;

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
    const typing = new Throttler(announce, TYPING_PAUSE_MS);

    notebooks.currentChanged.connect((_, panel) => {
      const id = kernelId(panel);
      if (id !== undefined && affinode.kernel(id)?.own) {
        announce(id);
      }
    });

    /** Of a kernel that has its GPU memory there is nothing to announce. */
    const announceParked = (): void => {
      const id = kernelId(notebooks.currentWidget);
      const kernel = id === undefined ? undefined : affinode.kernel(id);
      if (kernel?.own && kernel.residency === 'parked') {
        void typing.invoke(kernel.id);
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

function kernelId(panel: NotebookPanel | null): string | undefined {
  return panel?.sessionContext.session?.kernel?.id;
}
