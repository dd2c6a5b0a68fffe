import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICodeCellModel } from '@jupyterlab/cells';
import { IOutput } from '@jupyterlab/nbformat';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { KernelMessage } from '@jupyterlab/services';

/** The server's message that comes before output which no tab got; it says of which cells that is, by their code. */
const MISSED = 'affinode_missed_output';

/** What a cell that ran before this page was loaded still gets. */
interface ICell {
  model: ICodeCellModel;
  count: number;
  /** Where outputs with a display id stand. */
  displays: Map<string, number>;
}

/**
 * Puts into one notebook what its cells printed while no tab read it. JupyterLab itself shows output only in the page that
 * ran the cell.
 */
class MissedOutput {
  constructor(private readonly _panel: NotebookPanel) {
    _panel.sessionContext.iopubMessage.connect((_, message) => this._onMessage(message));
  }

  private _onMessage(message: KernelMessage.IMessage): void {
    if ((message.header.msg_type as string) === MISSED) {
      const { cells } = message.content as unknown as {
        cells: { [request: string]: { code: string; execution_count: number } };
      };
      for (const [request, { code, execution_count }] of Object.entries(cells)) {
        this._expect(request, code, execution_count);
      }
      return;
    }
    const request = (message.parent_header as Partial<KernelMessage.IHeader>).msg_id ?? '';
    const cell = this._cells.get(request);
    if (cell === undefined) {
      return;
    }
    if (KernelMessage.isStatusMsg(message)) {
      if (message.content.execution_state === 'idle') {
        cell.model.executionState = 'idle';
        cell.model.executionCount = cell.count;
        this._cells.delete(request);
      }
    } else {
      put(cell, message);
    }
  }

  /** Find the cell of this code: the one that was saved while it ran, else one that has the code. */
  private _expect(request: string, code: string, count: number): void {
    const taken = new Set([...this._cells.values()].map(cell => cell.model));
    const found = [...(this._panel.model?.cells ?? [])]
      .filter(cell => cell.type === 'code' && cell.sharedModel.getSource() === code)
      .map(cell => cell as ICodeCellModel)
      .filter(cell => !taken.has(cell));
    const model = found.find(cell => [null, count].includes(cell.executionCount)) ?? found[0];
    if (model === undefined) {
      return;
    }
    if (![null, count].includes(model.executionCount)) {
      model.outputs.clear(); // of an earlier run
    }
    model.executionState = 'running';
    this._cells.set(request, { count, displays: new Map(), model });
  }

  private readonly _cells = new Map<string, ICell>();
}

/** Do what JupyterLab's output area does with a message. */
function put({ displays, model: { outputs } }: ICell, message: KernelMessage.IMessage): void {
  const content = message.content as unknown as {
    transient?: { display_id?: string };
    wait?: boolean;
  };
  const id = content.transient?.display_id;
  switch (message.header.msg_type) {
    case 'clear_output':
      outputs.clear(content.wait);
      break;
    case 'update_display_data': {
      const index = displays.get(id ?? '');
      if (index !== undefined) {
        outputs.set(index, { ...content, output_type: 'display_data' } as IOutput);
      }
      break;
    }
    case 'stream':
    case 'display_data':
    case 'execute_result':
    case 'error':
      outputs.add({ ...content, output_type: message.header.msg_type } as IOutput);
      if (id !== undefined) {
        displays.set(id, outputs.length - 1);
      }
      break;
  }
}

/** Output that came while the server was away goes into its notebook also after a reload. */
export const missedOutputPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:missed-output',
  description: 'Puts output that came while no server ran into notebooks that are opened anew.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker): void => {
    notebooks.widgetAdded.connect((_, panel) => new MissedOutput(panel));
  }
};
