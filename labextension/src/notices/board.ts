/** Decides which notices are shown: what concerns this user, lasts, and has not been said. No JupyterLab here. */

import { IRemedy, remedies } from '../actions';
import { IKernel, INoticeEvent } from '../status';
import {
  actionLabel,
  actionOn,
  INoticeArgs,
  IWords,
  NamedAction,
  namesOf,
  notice,
  noticeText,
  stateText,
  title,
  waitSentence
} from '../words';

/** What is over sooner is not told: the chip and the panel show it meanwhile. */
export const LASTS_MS = 10_000;

/** For how long good news stays. */
const GOOD_NEWS_MS = 5000;

/** How long a notice that asks for nothing is shown. */
const INFO_MS = 10_000;

/** The same words are not shown again before. */
const AGAIN_MS = 5 * 60 * 1000;

/** How many notices are remembered for that. */
const REMEMBERED = 100;

/** A button of a notice. */
export interface INoticeAction {
  action: NamedAction;
  kernelId: string;
  label: string;
  /** Which process is to be ended. */
  process?: number;
}

/** What is shown. */
export interface IShownNotice {
  message: string;
  type: 'info' | 'success' | 'warning' | 'error' | 'in-progress';
  actions: INoticeAction[];
  autoClose: number | false;
}

/** Where notices are shown. */
export interface IScreen {
  /** Show one; its id. */
  show(notice: IShownNotice): string;
  /** Change one; one that the user has closed stays closed. */
  update(id: string, notice: IShownNotice): void;
  dismiss(id: string): void;
}

/** What the board looks at. */
export interface ISource {
  /** All kernels that are known; null while there is no status. */
  kernels(): IKernel[] | null;
  /** Whether the user wants notices. */
  isWanted(): boolean;
  /** Whether the kernel's notebook is in view, where its banner says that it waits. */
  isInView(kernelId: string): boolean;
}

/** What is told about one kernel's wait: first only a timer. */
interface IWait {
  timer?: ReturnType<typeof setTimeout>;
  id?: string;
  message?: string;
}

/** The notices of one page: at most one for a kernel at a time. */
export class NoticeBoard {
  constructor(
    private readonly _source: ISource,
    private readonly _screen: IScreen,
    private readonly _trans: IWords
  ) {}

  /** The status changed. It compares statuses and not events, so that a page that was hidden tells rightly, too. */
  look(): void {
    const all = this._source.kernels();
    if (all === null) {
      return; // nothing is known: what was shown may still be so
    }
    const kernels = all.filter(kernel => kernel.own);
    for (const kernel of kernels) {
      this._follow(kernel);
      this._titles.set(kernel.id, title(kernel, this._trans));
    }
    const last = this._last;
    this._last = new Map(kernels.map(kernel => [kernel.id, kernel.residency]));
    [...last.keys()].filter(id => !this._last.has(id)).forEach(id => this._endWait(id));
  }

  /** The controller has something to tell. */
  tell(event: INoticeEvent): void {
    if (!this._source.isWanted() || !this._concerns(event)) {
      return;
    }
    if (IMMEDIATE.includes(event.kind)) {
      this._show(event);
    } else {
      setTimeout(() => {
        if (this._source.isWanted() && this._stillHolds(event)) {
          this._show(event);
        }
      }, LASTS_MS);
    }
  }

  /** Room that one's own notebook needed is told where that one waits; low memory only where one has something there. */
  private _concerns({ kernel_id, kind, args }: INoticeEvent): boolean {
    if (kernel_id === null) {
      return this._kernels().some(kernel => kernel.own && kernel.residency === 'resident');
    }
    return !(kind === 'made-room' && args?.for === 'own');
  }

  private _stillHolds({ kernel_id, kind }: INoticeEvent): boolean {
    if (kernel_id === null) {
      return true;
    }
    const residency = this._kernel(kernel_id)?.residency;
    switch (kind) {
      case 'made-room':
        // A kernel that waits by now is told of by its wait.
        return residency === 'parked';
      case 'resume-failed':
        return residency === 'parked';
      case 'refused':
        return residency === 'resident';
      default:
        return residency !== undefined;
    }
  }

  private _show(event: INoticeEvent): void {
    const id = event.kernel_id;
    const name = id === null ? null : (this._titles.get(id) ?? this._trans.__('A notebook'));
    const message = notice(noticeText(event.kind, event.args as INoticeArgs, name, this._trans));
    const shown = this._told.get(message);
    if (shown !== undefined && Date.now() - shown < AGAIN_MS) {
      return;
    }
    this._told.set(message, Date.now());
    if (this._told.size > REMEMBERED) {
      this._told.delete(this._told.keys().next().value as string);
    }
    const isWarning = event.level === 'warning';
    this._put(id, {
      message,
      type: isWarning ? 'warning' : 'info',
      actions: this._actionsOf(event),
      autoClose: isWarning ? false : INFO_MS
    });
  }

  /** Show it in the place of what is shown about the same kernel. */
  private _put(kernelId: string | null, shown: IShownNotice): string {
    const before = kernelId === null ? undefined : this._ids.get(kernelId);
    if (before !== undefined) {
      this._screen.dismiss(before);
    }
    const id = this._screen.show(shown);
    if (kernelId !== null) {
      this._ids.set(kernelId, id);
    }
    return id;
  }

  private _actionsOf({ kernel_id, kind, args }: INoticeEvent): INoticeAction[] {
    const kernel = kernel_id === null ? undefined : this._kernel(kernel_id);
    if (!kernel) {
      return [];
    }
    if (kind === 'made-room') {
      return [this._action('resume', kernel)];
    }
    const process = kernel.processes.find(each => each.pid === args?.pid);
    if (kind === 'stuck' && process) {
      return [{ ...this._action('end', kernel), process: process.number }];
    }
    return [];
  }

  private _follow(kernel: IKernel): void {
    if (kernel.residency === 'queued') {
      this._waits(kernel);
    } else if (kernel.residency === 'resident') {
      this._back(kernel);
    } else if (kernel.residency !== 'resuming') {
      this._endWait(kernel.id);
    }
    const last = this._last.get(kernel.id);
    if (kernel.residency === 'lost' && last !== undefined && last !== 'lost') {
      this._put(kernel.id, {
        message: notice(`${title(kernel, this._trans)}: ${stateText(kernel, this._trans)}`),
        type: 'error',
        actions: [this._action('restart', kernel)],
        autoClose: false
      });
    } else if (last === 'lost' && kernel.residency !== 'lost') {
      this._dismiss(kernel.id);
    }
  }

  private _waits(kernel: IKernel): void {
    const wait = this._waiting.get(kernel.id);
    if (wait?.id !== undefined) {
      const shown = this._waitNotice(kernel);
      if (shown.message !== wait.message) {
        wait.message = shown.message;
        this._screen.update(wait.id, shown);
      }
    } else if (!wait && this._source.isWanted()) {
      const timer = setTimeout(() => this._showWait(kernel.id), LASTS_MS);
      this._waiting.set(kernel.id, { timer });
    }
  }

  /** A notebook in view has a banner, which says it better; it is looked at again while the wait goes on. */
  private _showWait(kernelId: string): void {
    const kernel = this._kernel(kernelId);
    if (kernel?.residency !== 'queued' || !this._source.isWanted()) {
      this._waiting.delete(kernelId);
      return;
    }
    if (this._source.isInView(kernelId)) {
      const timer = setTimeout(() => this._showWait(kernelId), LASTS_MS);
      this._waiting.set(kernelId, { timer });
      return;
    }
    const shown = this._waitNotice(kernel);
    this._waiting.set(kernelId, { id: this._put(kernelId, shown), message: shown.message });
  }

  /** The notice becomes the good news. */
  private _back(kernel: IKernel): void {
    const id = this._forgetWait(kernel.id);
    if (id !== undefined) {
      const message = notice(this._trans.__('%1 has the GPU.', title(kernel, this._trans)));
      this._screen.update(id, { message, type: 'success', actions: [], autoClose: GOOD_NEWS_MS });
    }
  }

  /** The wait was interrupted, or the kernel is gone. */
  private _endWait(kernelId: string): void {
    if (this._forgetWait(kernelId) !== undefined) {
      this._dismiss(kernelId);
    }
  }

  private _forgetWait(kernelId: string): string | undefined {
    const wait = this._waiting.get(kernelId);
    clearTimeout(wait?.timer);
    this._waiting.delete(kernelId);
    return wait?.id;
  }

  private _dismiss(kernelId: string): void {
    const id = this._ids.get(kernelId);
    if (id !== undefined) {
      this._ids.delete(kernelId);
      this._screen.dismiss(id);
    }
  }

  private _waitNotice(kernel: IKernel): IShownNotice {
    const nameOf = namesOf(id => this._kernel(id), this._trans);
    const why = waitSentence(kernel, nameOf, this._trans);
    const message = this._trans.__('%1 waits for the GPU. %2', title(kernel, this._trans), why);
    const remedy = remedies(kernel, id => this._kernel(id))[0];
    return {
      message: notice(message),
      type: 'in-progress',
      actions: [...(remedy ? [this._remedy(remedy)] : []), this._action('cancel-wait', kernel)],
      autoClose: false
    };
  }

  private _action(action: NamedAction, kernel: IKernel): INoticeAction {
    return { action, kernelId: kernel.id, label: actionLabel(action, this._trans) };
  }

  private _remedy({ action, kernel }: IRemedy): INoticeAction {
    const label = actionOn(action, title(kernel, this._trans), this._trans);
    return { action, kernelId: kernel.id, label };
  }

  private _kernels(): IKernel[] {
    return this._source.kernels() ?? [];
  }

  private _kernel(id: string): IKernel | undefined {
    return this._kernels().find(kernel => kernel.id === id);
  }

  /** The notice that is shown, or was, about a kernel. */
  private readonly _ids = new Map<string, string>();
  /** Of one's own kernels; also of those that have just ended, which may be what is told. */
  private readonly _titles = new Map<string, string>();
  private readonly _told = new Map<string, number>();
  private _last = new Map<string, string>();
  private readonly _waiting = new Map<string, IWait>();
}

/** What has happened and stays so. */
const IMMEDIATE = ['no-room', 'stuck', 'ended', 'moved'];
