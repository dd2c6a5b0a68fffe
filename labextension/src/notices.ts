import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { IKernel, INoticeEvent, Residency } from './status';
import { IAffinode } from './tokens';
import { notice, place, title } from './words';

/** A wait shorter than this is nothing to tell. */
const PATIENCE_MS = 1500;

/** How long a notice that asks for nothing is shown. */
const INFO_MS = 10000;

/** The same words are not shown again before. */
const AGAIN_MS = 5 * 60 * 1000;

/** How many notices are remembered for that. */
const REMEMBERED = 100;

/** What is being told about one kernel's wait: a timer before the notice is shown, its id afterwards. */
interface IWait {
  timer?: number;
  id?: string;
  message?: string;
}

/**
 * Tells that a notebook waits for the GPU, its place, and that it has the GPU again; and if its state is lost. And what the
 * controller has to tell: who made room for others, that memory is low, what was refused.
 *
 * It compares statuses and not events, so that what happened while the page was hidden or offline is told rightly.
 */
export class Notices {
  constructor(
    private readonly _affinode: IAffinode,
    private readonly _trans: TranslationBundle
  ) {
    _affinode.changed.connect(this._onChanged, this);
    _affinode.noticed.connect(this._onNoticed, this);
  }

  /** What the controller tells; it does so seldom. A page that is hidden has its person read the panel later. */
  private _onNoticed(_: IAffinode, told: INoticeEvent): void {
    if (!this._affinode.settings.showNotifications) {
      return;
    }
    const id = told.kernel_id;
    const name = id === null ? undefined : (this._titles.get(id) ?? this._trans.__('A notebook'));
    const message = notice(name === undefined ? told.text : `${name} ${told.text}`);
    const shown = this._told.get(message);
    if (shown !== undefined && Date.now() - shown < AGAIN_MS) {
      return;
    }
    this._told.set(message, Date.now());
    if (this._told.size > REMEMBERED) {
      this._told.delete(this._told.keys().next().value as string);
    }
    if (told.level === 'warning') {
      Notification.warning(message, { autoClose: false });
    } else {
      Notification.info(message, { autoClose: INFO_MS });
    }
  }

  private _onChanged(): void {
    const kernels = (this._affinode.status?.kernels ?? []).filter(kernel => kernel.own);
    for (const kernel of kernels) {
      this._tell(kernel, this._last.get(kernel.id));
    }
    kernels.forEach(kernel => this._titles.set(kernel.id, title(kernel, this._trans)));
    this._last = new Map(kernels.map(kernel => [kernel.id, kernel.residency]));
    if (this._affinode.status?.available) {
      const gone = [...this._waiting.keys()].filter(id => !this._last.has(id));
      gone.forEach(id => this._end(id));
    }
  }

  private _tell(kernel: IKernel, last: Residency | undefined): void {
    if (kernel.residency === 'queued') {
      this._waits(kernel);
    } else if (kernel.residency === 'resident') {
      this._back(kernel);
    } else if (kernel.residency !== 'resuming') {
      this._end(kernel.id);
    }
    if (kernel.residency === 'lost' && last !== undefined && last !== 'lost') {
      Notification.error(notice(`${title(kernel, this._trans)}: ${kernel.text}`), {
        autoClose: false
      });
    }
  }

  private _waits(kernel: IKernel): void {
    const wait = this._waiting.get(kernel.id);
    if (wait?.id !== undefined) {
      const message = this._waitingMessage(kernel);
      if (message !== wait.message) {
        wait.message = message;
        Notification.update({ id: wait.id, message, type: 'in-progress', autoClose: false });
      }
    } else if (!wait && this._affinode.settings.showNotifications) {
      const timer = window.setTimeout(() => this._showWait(kernel.id), PATIENCE_MS);
      this._waiting.set(kernel.id, { timer });
    }
  }

  private _showWait(kernelId: string): void {
    const kernel = this._affinode.kernel(kernelId);
    if (kernel?.residency !== 'queued') {
      this._waiting.delete(kernelId);
      return;
    }
    const message = this._waitingMessage(kernel);
    const id = Notification.emit(message, 'in-progress', { autoClose: false });
    this._waiting.set(kernelId, { id, message });
  }

  /** The notice becomes the good news; a dismissed one stays dismissed. */
  private _back(kernel: IKernel): void {
    const id = this._forget(kernel.id);
    if (id !== undefined) {
      const message = notice(this._trans.__('%1 has the GPU again.', title(kernel, this._trans)));
      Notification.update({ id, message, type: 'success', autoClose: 5000 });
    }
  }

  /** Nobody waits any more: the wait was interrupted, or the kernel is gone. */
  private _end(kernelId: string): void {
    const id = this._forget(kernelId);
    if (id !== undefined) {
      Notification.dismiss(id);
    }
  }

  private _forget(kernelId: string): string | undefined {
    const wait = this._waiting.get(kernelId);
    window.clearTimeout(wait?.timer);
    this._waiting.delete(kernelId);
    return wait?.id;
  }

  private _waitingMessage(kernel: IKernel): string {
    const name = title(kernel, this._trans);
    return notice(
      kernel.place === null
        ? this._trans.__('%1 waits for the GPU. Interrupt the kernel to give up.', name)
        : this._trans.__(
            '%1 waits for the GPU: %2. Interrupt the kernel to give up.',
            name,
            place(kernel.place, this._trans)
          )
    );
  }

  /** Of one's own kernels; also of those that have just ended, which may be what is told. */
  private readonly _titles = new Map<string, string>();
  private readonly _told = new Map<string, number>();
  private _last = new Map<string, Residency>();
  private readonly _waiting = new Map<string, IWait>();
}

/** Shows the notices, unless the settings say no. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:notices',
  description:
    'Notifications about the GPU: who waits, who made room for others, what was refused.',
  autoStart: true,
  requires: [IAffinode],
  optional: [ITranslator],
  activate: (_: JupyterFrontEnd, affinode: IAffinode, translator: ITranslator | null): void => {
    new Notices(affinode, (translator ?? nullTranslator).load('jupyter_affinode'));
  }
};
