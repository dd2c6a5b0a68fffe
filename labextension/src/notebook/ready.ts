import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';
import { IWarmPool } from '../status';
import { IAffinode } from '../tokens';
import { IWords } from '../words';

/** A tile of the launcher, and its words. */
const CARD = '.jp-LauncherCard';
const LABEL = '.jp-LauncherCard-label';

/**
 * Mark what starts a kernel of which one is ready, in the launcher and in the dialog that asks for a kernel. Return whether
 * any kernelspec that has such kernels is shown.
 */
export function markReady(root: ParentNode, pools: readonly IWarmPool[], trans: IWords): boolean {
  const byWords = new Map(pools.map(pool => [pool.display_name, pool]));
  const byName = new Map(pools.map(pool => [pool.name, pool]));
  let isThere = false;
  for (const card of root.querySelectorAll<HTMLElement>(CARD)) {
    const pool = byWords.get(card.querySelector(LABEL)?.textContent?.trim() ?? '');
    isThere ||= pool !== undefined;
    if (pool && pool.ready > 0) {
      card.dataset.affinodeReady = trans.__('ready');
      card.setAttribute(
        'aria-description',
        trans.__('Its kernel is ready: the notebook opens at once.')
      );
    } else if (card.dataset.affinodeReady !== undefined) {
      delete card.dataset.affinodeReady;
      card.removeAttribute('aria-description');
    }
  }
  for (const option of root.querySelectorAll<HTMLOptionElement>('.jp-Dialog option')) {
    const pool = byName.get(nameIn(option.value));
    isThere ||= pool !== undefined;
    // The label is shown in place of the text, which is JupyterLab's.
    if (pool && pool.ready > 0) {
      option.label = trans.__('%1 (ready)', option.text);
    } else if (pool) {
      option.removeAttribute('label');
    }
  }
  return isThere;
}

/** The kernelspec that an option of the kernel picker stands for: its value is JSON. */
function nameIn(value: string): string {
  try {
    const told = JSON.parse(value) as { name?: unknown; id?: unknown } | null;
    return told && !told.id && typeof told.name === 'string' ? told.name : '';
  } catch {
    return '';
  }
}

/** Keeps the marks true; it asks the server only while such a kernelspec is shown. */
export const readyPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:ready',
  description:
    'Says in the launcher and in the kernel picker which kernelspecs have a kernel ready.',
  autoStart: true,
  requires: [IAffinode],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, affinode: IAffinode, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    let watching: IDisposable | null = null;
    let frame = 0;
    const look = () => {
      frame = 0;
      const pools = affinode.status?.warm ?? [];
      const isThere = pools.length > 0 && markReady(document, pools, trans);
      if (isThere) {
        watching ??= affinode.watch();
      } else {
        watching?.dispose();
        watching = null;
      }
    };
    const soon = () => {
      frame ||= requestAnimationFrame(look);
    };
    const observer = new MutationObserver(soon);
    const follow = () => {
      observer.disconnect();
      for (const node of document.querySelectorAll('.jp-Launcher, .jp-Dialog')) {
        observer.observe(node, { childList: true, subtree: true, characterData: true });
      }
      soon();
    };
    const followLater = () => setTimeout(follow);
    affinode.changed.connect(soon);
    Dialog.tracker.widgetAdded.connect((_, dialog) => {
      dialog.disposed.connect(followLater);
      followLater();
    });
    const { layoutModified } = app.shell as { layoutModified?: ISignal<unknown, unknown> };
    layoutModified?.connect(followLater);
    app.shell.currentChanged?.connect(followLater);
    void app.restored.then(follow);
  }
};
