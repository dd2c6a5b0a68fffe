import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { IKernel } from '../status';
import { commandOf } from '../shell/commandOf';
import { actionLabel, actionOn, NamedAction, title } from '../words';

/** One button of an action on a kernel; `named` says on which, where that is not the kernel of this place. */
export function ActionButton(props: {
  action: NamedAction;
  commands: CommandRegistry;
  kernel: IKernel;
  named?: boolean;
  primary?: boolean;
  trans: TranslationBundle;
  onDone?: () => void;
}): JSX.Element {
  const { action, commands, kernel, named, primary, trans } = props;
  const id = commandOf[action];
  const args = { kernelId: kernel.id };
  const name = title(kernel, trans);
  const isEnabled = commands.isEnabled(id, args);
  return (
    <button
      type="button"
      className={`jp-affinode-action${primary ? ' jp-mod-primary' : ''}`}
      // A button that is disabled in truth would let the focus fall to the page's body.
      aria-disabled={!isEnabled}
      aria-label={named ? undefined : `${actionLabel(action, trans)}: ${name}`}
      title={commands.caption(id, args) || undefined}
      onClick={() => {
        if (commands.isEnabled(id, args)) {
          props.onDone?.();
          void commands.execute(id, args);
        }
      }}
    >
      {named ? actionOn(action, name, trans) : actionLabel(action, trans)}
    </button>
  );
}
