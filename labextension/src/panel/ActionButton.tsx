import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { commandOf } from '../shell/commandOf';
import { IKernel } from '../status';
import { actionLabel, actionOn, NamedAction, title } from '../words';
import { IView } from './view';

/** A button of the toolkit for an action on a kernel; `named` says which, where that is not the row's own. */
export function ActionButton(props: {
  action: NamedAction;
  args?: { process: number };
  kernel: IKernel;
  label?: string;
  named?: boolean;
  slot?: string;
  view: IView;
}): JSX.Element {
  const { action, kernel, named, view } = props;
  const { affinode, commands, trans } = view;
  const command = commandOf[action];
  const args = { kernelId: kernel.id, ...props.args };
  const name = title(kernel, trans);
  const label = props.label ?? actionLabel(action, trans);
  const isEnabled =
    !view.isStale && !affinode.pending(kernel.id) && commands.isEnabled(command, args);
  return (
    <Button
      small
      type="button"
      className="jp-affinode-button"
      data-control={props.slot ?? action}
      // A button that is disabled in truth would let the focus fall to the page's body.
      aria-disabled={!isEnabled}
      aria-label={named ? undefined : `${label}: ${name}`}
      title={commands.caption(command, args) || undefined}
      onClick={() => {
        if (isEnabled) {
          void commands.execute(command, args);
        }
      }}
    >
      {named ? actionOn(action, name, trans) : label}
    </Button>
  );
}
