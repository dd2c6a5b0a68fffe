import { TranslationBundle } from '@jupyterlab/translation';
import { Button } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { IKernel } from '../status';
import { actionLabel, actionOn, NamedAction, title } from '../words';
import { commandOf } from './commandOf';

/** A button of the toolkit for an action on a kernel; `named` says on which, where that is not the kernel of this place. */
export function ActionButton(props: {
  action: NamedAction;
  args?: { process: number };
  commands: CommandRegistry;
  kernel: IKernel;
  label?: string;
  named?: boolean;
  primary?: boolean;
  slot?: string;
  trans: TranslationBundle;
}): JSX.Element {
  const { action, commands, kernel, named, primary, trans } = props;
  const command = commandOf[action];
  const args = { kernelId: kernel.id, ...props.args };
  const name = title(kernel, trans);
  const label = props.label ?? actionLabel(action, trans);
  return (
    <Button
      small
      type="button"
      className={`jp-affinode-button${primary ? ' jp-mod-primary' : ''}`}
      data-control={props.slot ?? action}
      // A button that is disabled in truth would let the focus fall to the page's body.
      aria-disabled={!commands.isEnabled(command, args)}
      aria-label={named ? undefined : `${label}: ${name}`}
      title={commands.caption(command, args) || undefined}
      onClick={() => {
        if (commands.isEnabled(command, args)) {
          void commands.execute(command, args);
        }
      }}
    >
      {named ? (props.label ?? actionOn(action, name, trans)) : label}
    </Button>
  );
}
