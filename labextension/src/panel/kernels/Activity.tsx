import { Poll } from '@lumino/polling';
import * as React from 'react';
import { AffinodeError } from '../../api';
import { CallClass } from '../../controllerTypes';
import { IActivity, IKernel } from '../../status';
import { callClassText } from '../../words';
import { IView } from '../view';

/** How often the counters are looked at while they are shown, in milliseconds; less often where the server refuses. */
const FREQUENCY = { interval: 2000, backoff: true, max: 60_000 };

/** Two looks at the counters, and how far they are apart. */
interface ILooks {
  before: IActivity;
  now: IActivity;
  seconds: number;
}

/** A kernel's CUDA calls per second by class, and its most-called entry points; asks only while it is seen and answered. */
export function Activity(props: { kernel: IKernel; view: IView }): JSX.Element {
  const { affinode, isStale, isVisible, trans } = props.view;
  const { id } = props.kernel;
  const [looks, setLooks] = React.useState<ILooks | null>(null);
  const [isRefused, setRefused] = React.useState(false);
  const asks = isVisible && !isStale;
  React.useEffect(() => {
    if (!asks) {
      return undefined;
    }
    let before: { activity: IActivity; at: number } | null = null;
    const look = async () => {
      try {
        const activity = await affinode.activity(id);
        const at = performance.now();
        if (before && !poll.isDisposed) {
          const seconds = (at - before.at) / 1000;
          setLooks({ before: before.activity, now: activity, seconds });
        }
        before = { activity, at };
        setRefused(false);
      } catch (error) {
        setRefused(error instanceof AffinodeError && error.status === 404);
        throw error; // the pauses grow
      }
    };
    const poll = new Poll({ factory: look, frequency: FREQUENCY, standby: 'when-hidden' });
    return () => poll.dispose();
  }, [affinode, asks, id]);

  if (isRefused) {
    return <div className="jp-affinode-muted">{trans.__('The server does not count them.')}</div>;
  }
  if (!looks) {
    return <div className="jp-affinode-muted">{trans.__('Counting…')}</div>;
  }
  const rows = rates(looks);
  const entryPoints = looks.now.entry_points?.slice(0, 8) ?? [];
  return (
    <div className="jp-affinode-activity">
      <Table
        caption={trans.__('Calls per second')}
        empty={trans.__('None in the last seconds.')}
        rows={rows.map(([name, value]) => [callClassText(name, trans), perSecond(value)])}
      />
      {entryPoints.length > 0 && (
        <Table
          caption={trans.__('Called most since this was opened')}
          empty=""
          rows={entryPoints.map(({ name, calls }) => [name, calls.toLocaleString()])}
        />
      )}
    </div>
  );
}

function Table(props: { caption: string; empty: string; rows: [string, string][] }): JSX.Element {
  return (
    <table className="jp-affinode-counts">
      <caption>{props.caption}</caption>
      <tbody>
        {props.rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>{value}</td>
          </tr>
        ))}
        {props.rows.length === 0 && (
          <tr>
            <td colSpan={2}>{props.empty}</td>
          </tr>
        )}
      </tbody>
    </table>
  );
}

/** Calls per second between two looks, the most first; counters that began anew count from nothing. */
function rates(looks: ILooks): [string, number][] {
  const { before, now, seconds } = looks;
  return Object.entries(now.calls)
    .map(([name, calls]): [string, number] => {
      const last = before.calls[name as CallClass];
      return [name, (calls < last ? calls : calls - last) / Math.max(seconds, 0.001)];
    })
    .filter(([, rate]) => rate > 0)
    .sort(([, one], [, other]) => other - one);
}

function perSecond(rate: number): string {
  return rate < 10 ? String(Number(rate.toFixed(1))) : Math.round(rate).toLocaleString();
}
