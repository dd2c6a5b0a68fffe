import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { canResume, idle } from '../../actions';
import { commandOf } from '../../shell/commandOf';
import { IKernel } from '../../status';
import { bytes, freeIdleText } from '../../words';
import { MANY, SectionId } from './rows';
import { IView } from '../view';

/** How long what was freed together can be brought back together. */
const UNDO_MS = 120_000;

/** What the heads of sections offer: freeing all that is idle, and undoing that; null where there is nothing to offer. */
export function useFreeIdle(
  kernels: IKernel[],
  view: IView
): (section: SectionId) => JSX.Element | null {
  const { affinode, commands, trans } = view;
  const [freed, setFreed] = React.useState<readonly string[]>([]);
  React.useEffect(() => {
    const timer = window.setTimeout(() => setFreed([]), UNDO_MS);
    return () => window.clearTimeout(timer);
  }, [freed]);
  const mayAct = affinode.status?.may_act !== false && !view.isStale;
  const found = mayAct ? idle(kernels) : [];
  const undone = mayAct ? kernels.filter(each => freed.includes(each.id) && canResume(each)) : [];
  const each = (action: 'park' | 'resume', of: IKernel[]) => {
    for (const { id } of of) {
      void commands.execute(commandOf[action], { kernelId: id });
    }
  };
  return section => {
    if (section === 'resident' && found.length > 1) {
      const size = found.reduce((sum, kernel) => sum + kernel.resident_bytes, 0);
      return (
        <HeadButton
          control="free idle"
          label={
            kernels.length > MANY
              ? trans.__('Free idle (%1)', bytes(size))
              : freeIdleText(size, trans)
          }
          title={freeIdleText(size, trans)}
          onClick={() => {
            setFreed(found.map(kernel => kernel.id));
            each('park', found);
          }}
        />
      );
    }
    if (section === 'freed' && undone.length > 0) {
      return (
        <HeadButton
          control="undo free idle"
          label={trans.__('Undo')}
          title={trans.__('Get back what was freed together')}
          onClick={() => {
            setFreed([]);
            each('resume', undone);
          }}
        />
      );
    }
    return null;
  };
}

function HeadButton(props: {
  control: string;
  label: string;
  onClick: () => void;
  title?: string;
}): JSX.Element {
  return (
    <Button
      small
      type="button"
      className="jp-affinode-button jp-affinode-headButton"
      data-control={props.control}
      title={props.title}
      onClick={props.onClick}
    >
      {props.label}
    </Button>
  );
}
