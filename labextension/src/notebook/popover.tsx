import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as React from 'react';
import { offered, remedies } from '../actions';
import { keepIcon, residencyIcons } from '../icons';
import { ActionButton } from '../shell/ActionButton';
import { IKernel, INode } from '../status';
import { CommandIDs, IAffinode } from '../tokens';
import {
  aged,
  details,
  hibernationRefusal,
  imageWarnings,
  lastMoveText,
  lostText,
  moveText,
  namesOf,
  reasonText,
  refusalText,
  seconds,
  stateText,
  waitSentence
} from '../words';

/** How far it stays from the window's edges. */
const MARGIN = 8;

/** State, details and actions of one kernel, below its chip. Escape and a click elsewhere close it. */
export class Popover extends ReactWidget {
  constructor(private readonly _options: Popover.IOptions) {
    super();
    this.id = 'jp-affinode-popover';
    this.addClass('jp-affinode-popover');
    this.node.setAttribute('role', 'dialog');
    this.node.setAttribute('aria-label', _options.trans.__('GPU of this notebook'));
    this.node.tabIndex = -1;
    _options.affinode.changed.connect(this._onChanged, this);
    _options.commands.commandChanged.connect(this._onChanged, this);
  }

  /** Show it below its anchor, with the focus on the first button. */
  open(): void {
    Widget.attach(this, document.body);
    void this._options.affinode.refresh();
    void this.renderPromise?.then(() => {
      this._place();
      this._focus();
    });
  }

  /** Close it; the focus goes back to the anchor unless the user has moved it elsewhere. */
  override close(): void {
    const hadFocus = this.node.contains(document.activeElement);
    if (this.isAttached) {
      Widget.detach(this);
    }
    this.dispose();
    if (hadFocus) {
      this._options.anchor.focus();
      if (document.activeElement !== this._options.anchor) {
        this._options.refocus(); // the chip is gone or out of sight: the focus would fall to the page's body
      }
    }
  }

  override dispose(): void {
    if (!this.isDisposed) {
      super.dispose();
      this._options.onClosed();
    }
  }

  handleEvent(event: Event): void {
    const target = event.target as Node | null;
    const isInside = this.node.contains(target) || this._options.anchor.contains(target);
    if (event.type === 'keydown' && (event as KeyboardEvent).key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      this.node.focus(); // so that closing gives the focus back to the chip
      this.close();
    } else if (event.type === 'resize') {
      this._place();
    } else if (event.type !== 'keydown' && !isInside) {
      this.close();
    }
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    document.addEventListener('keydown', this, true);
    document.addEventListener('pointerdown', this, true);
    document.addEventListener('focusin', this, true);
    window.addEventListener('resize', this);
    this._clock = window.setInterval(() => this.update(), 1000);
  }

  protected override onBeforeDetach(msg: Message): void {
    document.removeEventListener('keydown', this, true);
    document.removeEventListener('pointerdown', this, true);
    document.removeEventListener('focusin', this, true);
    window.removeEventListener('resize', this);
    window.clearInterval(this._clock);
    super.onBeforeDetach(msg);
  }

  /** A button that is not offered any longer takes the focus with it. */
  protected override onUpdateRequest(msg: Message): void {
    const hadFocus = this.node.contains(document.activeElement);
    super.onUpdateRequest(msg);
    void this.renderPromise?.then(() => {
      if (hadFocus && document.activeElement === document.body) {
        this._focus();
      }
    });
  }

  protected render(): JSX.Element | null {
    const { affinode, commands, trans } = this._options;
    const seen = this._options.kernel();
    if (!seen) {
      return null;
    }
    const kernel = affinode.stale ? seen : aged(seen, affinode.age(seen.id));
    const nameOf = namesOf(id => affinode.kernel(id), trans);
    const waits = kernel.residency === 'queued' && waitSentence(kernel, nameOf, trans);
    const ways = waits ? remedies(kernel, id => affinode.kernel(id)) : [];
    const actions = offered(kernel).map(action => ({ action, kernel }));
    const StateIcon = residencyIcons[kernel.residency].react;
    return (
      <>
        <div className={`jp-affinode-popoverTitle jp-mod-${kernel.residency}`}>
          <StateIcon tag="span" className="jp-affinode-popoverIcon" aria-hidden="true" />
          <span>{kernel.move ? moveText(kernel.move, trans) : stateText(kernel, trans)}</span>
          {kernel.held_for_s !== null && (
            <keepIcon.react tag="span" className="jp-affinode-pin" aria-hidden="true" />
          )}
        </div>
        {affinode.stale && affinode.problem && <p>{affinode.problem.message}</p>}
        {waits && <p>{waits}</p>}
        {facts(kernel, affinode.status?.node, trans).map(fact => (
          <p key={fact} className="jp-mod-muted">
            {fact}
          </p>
        ))}
        <div className="jp-affinode-actions">
          {/* What ends the wait well comes first, as in the banner. */}
          {[...ways, ...actions].map((each, index) => (
            <ActionButton
              key={`${each.action} ${each.kernel.id}`}
              action={each.action}
              commands={commands}
              kernel={each.kernel}
              named={index < ways.length}
              primary={index === 0}
              trans={trans}
            />
          ))}
        </div>
        {commands.hasCommand(CommandIDs.openPanel) && (
          <button
            type="button"
            className="jp-affinode-link"
            onClick={() => {
              this.close();
              void commands.execute(CommandIDs.openPanel);
            }}
          >
            {trans.__('All kernels and GPUs')}
          </button>
        )}
      </>
    );
  }

  private _onChanged(): void {
    if (this._options.kernel()) {
      this.update();
    } else {
      this.close();
    }
  }

  private _focus(): void {
    (this.node.querySelector<HTMLElement>('button') ?? this.node).focus();
  }

  /** Below the anchor, or above it where there is no room, and never beyond the window. */
  private _place(): void {
    const anchor = this._options.anchor.getBoundingClientRect();
    const { offsetHeight: height, offsetWidth: width } = this.node;
    const left = Math.min(anchor.left, window.innerWidth - width - MARGIN);
    const below = anchor.bottom + 4;
    const isBelow = below + height + MARGIN <= window.innerHeight;
    this.node.style.left = `${Math.max(MARGIN, left)}px`;
    this.node.style.top = `${isBelow ? below : Math.max(MARGIN, anchor.top - height - 4)}px`;
  }

  private _clock: number | undefined;
}

export namespace Popover {
  /** What a popover needs. */
  export interface IOptions {
    affinode: IAffinode;
    anchor: HTMLElement;
    commands: CommandRegistry;
    kernel: () => IKernel | undefined;
    onClosed: () => void;
    /** Give the focus to the notebook. */
    refocus: () => void;
    trans: TranslationBundle;
  }
}

/** What is worth knowing beside the state. */
function facts(
  kernel: IKernel,
  node: INode | null | undefined,
  trans: TranslationBundle
): string[] {
  const lines = [details(kernel, node, trans).join(' · ')];
  if (kernel.residency === 'parked') {
    const why = reasonText(kernel.reason_code, kernel.reason_args, trans);
    lines.push(why === null ? '' : trans.__('Freed: %1.', why));
    const soon = kernel.resume_estimate_s;
    lines.push(
      soon === null || soon === undefined
        ? trans.__('The next cell that uses CUDA gets it back.')
        : trans.__('The next cell that uses CUDA gets it back in about %1.', seconds(soon, trans))
    );
    lines.push(kernel.last_park ? lastMoveText('park', kernel.last_park, trans) : '');
  }
  if (kernel.residency === 'resident') {
    const why = refusalText(kernel.refusal_code, kernel.refusal_args, trans);
    lines.push(why === null ? '' : trans.__('Not freed last time: %1.', why));
    lines.push(kernel.last_resume ? lastMoveText('resume', kernel.last_resume, trans) : '');
  }
  if (kernel.residency === 'lost') {
    lines.push(lostText(trans));
  }
  if (kernel.hibernation?.state === 'hibernated') {
    lines.push(trans.__('The next cell wakes it, with all its variables.'));
  }
  lines.push(hibernationRefusal(kernel, trans) ?? '');
  lines.push(...imageWarnings(kernel.hibernation, trans));
  return lines.filter(line => line !== '');
}
