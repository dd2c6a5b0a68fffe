import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

/** For how long a cell waits until JupyterLab is connected with the kernel that its notebook has. */
const CONNECTED_MS = 30_000;

/** Whether the server has a session of the notebook, or cannot be asked. */
async function mayHaveSession({ path, sessionManager }: ISessionContext): Promise<boolean> {
  try {
    await sessionManager.refreshRunning();
  } catch {
    return true;
  }
  return [...sessionManager.running()].some(session => session.path === path);
}

/**
 * Have a cell that is run in a page which was just loaded wait until JupyterLab is connected with the notebook's kernel.
 *
 * JupyterLab 4.6 starts another kernel for the cell and, once that is there, ends the one with which it has been connected
 * meanwhile (`startKernel` and `_changeKernel` of its `SessionContext`): all that the user computed is lost.
 */
function guard(context: ISessionContext, onNotConnected: () => void): void {
  const start = context.startKernel.bind(context);
  context.startKernel = async () => {
    if (context.isReady || !(await mayHaveSession(context))) {
      return start();
    }
    const late = new Promise(resolve => setTimeout(resolve, CONNECTED_MS));
    await Promise.race([context.ready, late]);
    if (!context.isReady) {
      onNotConnected();
    }
    return false;
  };
}

/** No kernel is ended because a cell was run early. */
export const earlyCellPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:early-cell',
  description:
    'Has a cell that is run while a page is loading wait for the kernel of its notebook.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    notebooks: INotebookTracker,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    notebooks.widgetAdded.connect((_, { sessionContext }) =>
      guard(sessionContext, () => {
        const name = sessionContext.name;
        Notification.error(
          trans.__('The page is not connected with the kernel of %1: reload it.', name),
          { autoClose: false }
        );
      })
    );
  }
};
