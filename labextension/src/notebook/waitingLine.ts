import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

/** The metadata of an output that says that its cell waits, by `jupyter_affinode/kernel/waiting_display.py`. */
const WAITING = 'affinode_waiting';

/** After these the kernel cannot empty that output: JupyterLab has forgotten the cell's request. */
const ENDS: readonly string[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/** Empty what says that a cell waits; it is not removed, as JupyterLab knows other outputs by where they stand. */
function empty(panel: NotebookPanel): void {
  for (const cell of panel.model?.cells ?? []) {
    const { outputs } = cell as Partial<ICodeCellModel>;
    for (let index = 0; outputs && index < outputs.length; index += 1) {
      if (outputs.get(index).metadata[WAITING]) {
        const data = { 'text/plain': '' };
        outputs.set(index, { output_type: 'display_data', data, metadata: {} });
      }
    }
  }
}

/** No notebook says that a cell waits which does not. Where one still does after a reload, the banner says so. */
export const waitingLinePlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:waiting-line',
  description: 'Empties the output that says that a cell waits where its kernel no longer can.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker): void => {
    notebooks.widgetAdded.connect((_, panel) => {
      void panel.context.ready.then(() => empty(panel));
      panel.sessionContext.statusChanged.connect((_, status) => {
        if (ENDS.includes(status)) {
          empty(panel);
        }
      });
    });
  }
};
