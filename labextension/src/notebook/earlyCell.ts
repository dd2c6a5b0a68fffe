import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { SessionAPI } from '@jupyterlab/services';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

/** After how long a cell that waits until JupyterLab is connected with its notebook's kernel is told of. */
const CONNECTED_MS = 30_000;

/** Whether the server has a session of the notebook, or cannot be asked: of that JupyterLab's session manager tells nothing. */
async function mayHaveSession({ path, sessionManager }: ISessionContext): Promise<boolean> {
  try {
    const running = await SessionAPI.listRunning(sessionManager.serverSettings);
    return running.some(session => session.path === path);
  } catch {
    return true;
  }
}

/**
 * Have a cell that is run in a page which was just loaded wait until JupyterLab is connected with the notebook's kernel.
 *
 * JupyterLab 4.6 starts another kernel for the cell and, once that is there, ends the one with which it has been connected
 * meanwhile (`startKernel` and `_changeKernel` of its `SessionContext`): all that the user computed is lost. Where there is
 * no kernel yet, the cell and JupyterLab, which connects the notebook, share the one that is started.
 */
function guard(context: ISessionContext, onNotConnected: () => void): void {
  const start = context.startKernel.bind(context);
  let starting: Promise<boolean> | null = null;
  context.startKernel = async () => {
    if (context.isReady) {
      return start();
    }
    if (!(await mayHaveSession(context)) && !context.isReady) {
      starting ??= start().finally(() => (starting = null));
      return starting;
    }
    const late = setTimeout(() => {
      if (!context.isDisposed) {
        onNotConnected();
      }
    }, CONNECTED_MS);
    await context.ready; // without a kernel JupyterLab would clear the cell, which has not run
    clearTimeout(late);
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
