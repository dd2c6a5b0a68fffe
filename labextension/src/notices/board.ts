/** Decides which notices are shown: what concerns this user, lasts, and has not been said. No JupyterLab here. */

import { IRemedy, remedies } from '../actions';
import { IKernel, INoticeEvent } from '../status';
import {
  actionLabel,
  actionOn,
  IWords,
  NamedAction,
  namesOf,
  notice,
  noticesText,
  noticeText,
  stateText,
  title,
  waitSentence
} from '../words';
import { INoticeAction, IScreen, IShownNotice } from './screen';

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

/** What is about the same within this time is one notice, which grows. */
const TOGETHER_MS = INFO_MS;

/** What the board looks at. */
export interface ISource {
  /** All kernels that are known; null while there is no status. */
  kernels(): IKernel[] | null;
  /** Whether the user wants notices. */
  isWanted(): boolean;
  /** Whether the kernel's notebook is in view, where its banner says that it waits. */
  isInView(kernelId: string): boolean;
}

/** One notice, and the kernels that it is about. */
interface ITopic {
  /** By kernel ("" of the machine) what was told of it; null where its state says it. */
  kernels: Map<string, INoticeEvent | null>;
  id?: string;
  shown?: IShownNotice;
  at: number;
}

/** The notices of one page: one for what happens to several kernels at a time, and at most one for a kernel. */
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
      this._titles.set(kernel.id, title(kernel, this._trans));
    }
    kernels.forEach(kernel => this._follow(kernel));
    const last = this._last;
    this._last = new Map(kernels.map(kernel => [kernel.id, kernel.residency]));
    for (const id of [...last.keys()].filter(id => !this._last.has(id))) {
      this._endWait(id);
      this._leave('lost', id);
    }
    if (this._topics.get('wait')?.kernels.size) {
      this._draw('wait'); // its reason may have changed
    }
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
    const { args, kernel_id, kind } = event;
    const said = noticeText(kind, args, this._name(kernel_id), this._trans);
    const shown = this._told.get(said);
    if (shown !== undefined && Date.now() - shown < AGAIN_MS) {
      return;
    }
    this._told.set(said, Date.now());
    if (this._told.size > REMEMBERED) {
      this._told.delete(this._told.keys().next().value as string);
    }
    this._join(`${kind} ${args?.reason} ${args?.for}`, kernel_id ?? '', event);
  }

  /** What is shown about a kernel is about this by now, together with others of which the same is told. */
  private _join(key: string, kernelId: string, event: INoticeEvent | null): void {
    const topic: ITopic = this._topics.get(key) ?? { kernels: new Map(), at: 0 };
    if (!LASTING.includes(key) && Date.now() - topic.at >= TOGETHER_MS) {
      topic.kernels.clear();
      topic.id = topic.shown = undefined;
    }
    if (kernelId !== '') {
      [...this._topics.keys()]
        .filter(other => other !== key)
        .forEach(other => this._leave(other, kernelId));
    }
    this._topics.set(key, topic);
    topic.kernels.set(kernelId, event);
    this._draw(key);
  }

  /** A notice is no longer about a kernel; one that is about none goes. */
  private _leave(key: string, kernelId: string): void {
    const topic = this._topics.get(key);
    if (!topic?.kernels.delete(kernelId)) {
      return;
    }
    if (topic.kernels.size > 0) {
      this._draw(key);
    } else {
      this._topics.delete(key);
      if (topic.id !== undefined) {
        this._screen.dismiss(topic.id);
      }
    }
  }

  private _draw(key: string): void {
    const topic = this._topics.get(key);
    if (!topic) {
      return;
    }
    const shown = this._noticeOf(key, topic);
    if (topic.id === undefined) {
      topic.id = this._screen.show(shown);
    } else if (JSON.stringify(shown) !== JSON.stringify(topic.shown)) {
      this._screen.update(topic.id, shown);
    } else {
      return;
    }
    topic.shown = shown;
    topic.at = Date.now();
  }

  private _noticeOf(key: string, { kernels }: ITopic): IShownNotice {
    const ids = [...kernels.keys()];
    const event = kernels.get(ids[0]);
    if (event) {
      const isWarning = event.level === 'warning';
      return {
        message: ids.length > 1 ? this._sum([...kernels.values()]) : this._sentence(event),
        type: isWarning ? 'warning' : 'info',
        actions: ids.length > 1 ? [this._panel()] : this._actionsOf(event),
        autoClose: isWarning ? false : INFO_MS
      };
    }
    const found = ids.map(id => this._kernel(id)).filter(kernel => kernel !== undefined);
    switch (key) {
      case 'wait':
        return this._waitNotice(found);
      case 'lost':
        return {
          message:
            found.length === 1
              ? notice(
                  short =>
                    `${short(title(found[0], this._trans))}: ${stateText(found[0], this._trans)}`
                )
              : noticesText('lost', null, ids.length, this._trans),
          type: 'error',
          actions: found.length === 1 ? [this._action('restart', found[0])] : [this._panel()],
          autoClose: false
        };
      default:
        return {
          message:
            ids.length === 1
              ? notice(short => this._trans.__('%1 has the GPU.', short(this._name(ids[0]) ?? '')))
              : noticesText('back', null, ids.length, this._trans),
          type: 'success',
          actions: [],
          autoClose: GOOD_NEWS_MS
        };
    }
  }

  private _sentence({ args, kernel_id, kind }: INoticeEvent): string {
    const name = this._name(kernel_id);
    return notice(short => noticeText(kind, args, name === null ? null : short(name), this._trans));
  }

  /** What is told of several kernels, with the sum of their sizes. */
  private _sum(events: (INoticeEvent | null)[]): string {
    const [first] = events;
    const sizes = events.map(event => event?.args?.bytes);
    const isKnown = sizes.every(size => typeof size === 'number');
    const bytes = isKnown ? sizes.reduce<number>((sum, size) => sum + Number(size), 0) : null;
    return noticesText(first?.kind ?? '', { ...first?.args, bytes }, events.length, this._trans);
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
      this._join('lost', kernel.id, null);
    } else if (last === 'lost' && kernel.residency !== 'lost') {
      this._leave('lost', kernel.id);
    }
  }

  private _waits(kernel: IKernel): void {
    const isTold = this._topics.get('wait')?.kernels.has(kernel.id);
    if (!isTold && !this._waiting.has(kernel.id) && this._source.isWanted()) {
      this._waiting.set(
        kernel.id,
        setTimeout(() => this._showWait(kernel.id), LASTS_MS)
      );
    }
  }

  /** A notebook in view has a banner, which says it better; it is looked at again while the wait goes on. */
  private _showWait(kernelId: string): void {
    this._waiting.delete(kernelId);
    const kernel = this._kernel(kernelId);
    if (kernel?.residency !== 'queued' || !this._source.isWanted()) {
      return;
    }
    if (this._source.isInView(kernelId)) {
      this._waiting.set(
        kernelId,
        setTimeout(() => this._showWait(kernelId), LASTS_MS)
      );
      return;
    }
    this._join('wait', kernelId, null);
  }

  /** The notice becomes the good news, unless it is about others, too. */
  private _back(kernel: IKernel): void {
    this._forgetTimer(kernel.id);
    const topic = this._topics.get('wait');
    if (!topic?.kernels.has(kernel.id)) {
      return;
    }
    if (topic.kernels.size === 1 && !this._isFresh('back')) {
      this._topics.delete('wait');
      this._topics.set('back', { ...topic, kernels: new Map(), at: Date.now() });
    }
    this._join('back', kernel.id, null);
  }

  private _isFresh(key: string): boolean {
    return Date.now() - (this._topics.get(key)?.at ?? 0) < TOGETHER_MS;
  }

  /** The wait was interrupted, or the kernel is gone. */
  private _endWait(kernelId: string): void {
    this._forgetTimer(kernelId);
    this._leave('wait', kernelId);
  }

  private _forgetTimer(kernelId: string): void {
    clearTimeout(this._waiting.get(kernelId));
    this._waiting.delete(kernelId);
  }

  private _waitNotice(kernels: IKernel[]): IShownNotice {
    const trans = this._trans;
    const [first] = [...kernels].sort((one, other) => (one.place ?? 0) - (other.place ?? 0));
    const nameOf = namesOf(id => this._kernel(id), trans);
    const remedy = first && remedies(first, id => this._kernel(id))[0];
    const message = notice(short => {
      const why = waitSentence(first, id => short(nameOf(id) ?? '') || null, trans);
      return kernels.length === 1
        ? trans.__('%1 waits for the GPU. %2', short(title(first, trans)), why)
        : trans.__('%1 %2', noticesText('wait', null, kernels.length, trans), why);
    });
    const end = kernels.length === 1 ? this._action('cancel-wait', first) : this._panel();
    return {
      message,
      type: 'in-progress',
      actions: [...(remedy ? [this._remedy(remedy)] : []), end],
      autoClose: false
    };
  }

  private _action(action: NamedAction, kernel: IKernel): INoticeAction {
    return { action, kernelId: kernel.id, label: actionLabel(action, this._trans) };
  }

  private _panel(): INoticeAction {
    return { action: 'panel', kernelId: '', label: this._trans.__('Show the GPU panel') };
  }

  private _remedy({ action, kernel }: IRemedy): INoticeAction {
    const label = actionOn(action, title(kernel, this._trans), this._trans);
    return { action, kernelId: kernel.id, label };
  }

  /** A kernel's name, also of one that has just ended; null: the machine. */
  private _name(kernelId: string | null): string | null {
    return kernelId && (this._titles.get(kernelId) ?? this._trans.__('A notebook'));
  }

  private _kernels(): IKernel[] {
    return this._source.kernels() ?? [];
  }

  private _kernel(id: string): IKernel | undefined {
    return this._kernels().find(kernel => kernel.id === id);
  }

  /** What is shown, or was, by what it is about. */
  private readonly _topics = new Map<string, ITopic>();
  /** Of one's own kernels; also of those that have just ended, which may be what is told. */
  private readonly _titles = new Map<string, string>();
  private readonly _told = new Map<string, number>();
  private _last = new Map<string, string>();
  /** Waits that are not told yet. */
  private readonly _waiting = new Map<string, ReturnType<typeof setTimeout>>();
}

/** Topics that stay for as long as a kernel is in that state. */
const LASTING = ['wait', 'lost'];

/** What has happened and stays so. */
const IMMEDIATE = ['no-room', 'stuck', 'ended', 'moved'];
