import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { canHold, canStopWaiting } from '../../actions';
import { commandOf } from '../../shell/commandOf';
import { IKernel } from '../../status';
import { keepChoices, title } from '../../words';
import { IView } from '../view';

/** Until when a notebook is kept: an hour, the end of the day, tonight. */
export function KeepUntil(props: { kernel: IKernel; view: IView }): JSX.Element | null {
  const { kernel, view } = props;
  const { commands, trans } = view;
  const [isOpen, setOpen] = React.useState(false);
  const toggle = React.useRef<HTMLSpanElement>(null);
  if (!canHold(kernel) || canStopWaiting(kernel)) {
    return null;
  }
  const name = title(kernel, trans);
  const mayKeep = commands.isEnabled(commandOf.hold, { kernelId: kernel.id });
  return (
    <>
      <span ref={toggle}>
        <Button
          small
          minimal
          type="button"
          className="jp-affinode-button"
          data-control="keep until"
          aria-expanded={isOpen}
          aria-disabled={!mayKeep}
          aria-label={trans.__('Keep until…: %1', name)}
          onClick={() => mayKeep && setOpen(!isOpen)}
        >
          {trans.__('Keep until…')}
        </Button>
      </span>
      {isOpen && (
        <span
          className="jp-affinode-keepUntil"
          role="group"
          aria-label={trans.__('Keep %1 until', name)}
        >
          {keepChoices(new Date(), trans).map(({ label, minutes }, index) => (
            <Button
              key={label}
              small
              type="button"
              className="jp-affinode-button"
              data-control={`keep until ${index}`}
              onClick={() => {
                toggle.current?.querySelector<HTMLElement>('[data-control]')?.focus();
                setOpen(false);
                void commands.execute(commandOf.hold, { kernelId: kernel.id, minutes });
              }}
            >
              {label}
            </Button>
          ))}
        </span>
      )}
    </>
  );
}
