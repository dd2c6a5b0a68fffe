import { JupyterFrontEnd, JupyterFrontEndPlugin, ILabShell } from '@jupyterlab/application';
import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { IAffinode } from '../tokens';

/** The browser's name for the tab of a notebook, by which another tab finds it. */
function tabName(path: string): string {
  return `jupyter-affinode ${path}`;
}

/** Bring a notebook's tab of the browser to the front, or open one; not a second one of the same notebook. */
export function showTab(path: string): void {
  const tab = window.open('', tabName(path));
  if (tab && tab.location.href === 'about:blank') {
    tab.location.href = URLExt.join(PageConfig.getBaseUrl(), 'notebooks', URLExt.encodeParts(path));
  }
  tab?.focus();
}

/** Where each notebook has a tab of the browser, as in Notebook 7: the tab's title says that it waits. */
export const browserTabPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:browser-tab',
  description: 'Says in the title of a browser’s tab that its notebook waits for the GPU.',
  autoStart: true,
  requires: [IAffinode, INotebookTracker],
  optional: [ILabShell, ITranslator],
  activate: (
    _: JupyterFrontEnd,
    affinode: IAffinode,
    notebooks: INotebookTracker,
    labShell: ILabShell | null,
    translator: ITranslator | null
  ): void => {
    if (labShell) {
      return; // its tabs have badges
    }
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    let [shown, plain] = ['', ''];
    const look = () => {
      const id = notebooks.currentWidget?.sessionContext.session?.kernel?.id;
      const isWaiting = id !== undefined && affinode.kernel(id)?.residency === 'queued';
      plain = document.title === shown ? plain : document.title;
      shown = isWaiting ? trans.__('Waiting: %1', plain) : plain;
      if (document.title !== shown) {
        document.title = shown;
      }
    };
    affinode.changed.connect(look);
    notebooks.currentChanged.connect((_, panel) => {
      window.name ||= panel ? tabName(panel.context.path) : '';
      look();
    });
  }
};
