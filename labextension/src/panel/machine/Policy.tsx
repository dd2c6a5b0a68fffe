import * as React from 'react';
import { Notification } from '@jupyterlab/apputils';
import { AffinodeError } from '../../api';
import { INode, IPolicy } from '../../status';
import { errorText, gpuTime, span } from '../../words';
import { IView } from '../view';

/** Less is not worth a line. */
const LEAST_S = 30;

/** When idle notebooks are freed, in words, with a switch where it is the user's own, and what that gave back today. */
export function Policy(props: { node: INode; view: IView }): JSX.Element | null {
  const { node, view } = props;
  const { trans } = view;
  const { policy, today } = node;
  const given = today && today.freed_gpu_s >= LEAST_S ? gpuTime(today.freed_gpu_s, trans) : null;
  if (!policy && given === null) {
    return null;
  }
  return (
    <section className="jp-affinode-policy" aria-label={trans.__('Policy')}>
      {policy && (
        <div className="jp-affinode-policyText" title={policyText(policy, view)}>
          {policyText(policy, view)}
        </div>
      )}
      {policy?.may_change && view.affinode.status?.may_act && (
        <Switch policy={policy} view={view} />
      )}
      {given !== null && (
        <div className="jp-affinode-muted" title={trans.__('GPU memory that idle notebooks freed')}>
          {trans.__('Given back today: %1', given)}
        </div>
      )}
    </section>
  );
}

function policyText(policy: IPolicy, view: IView): string {
  const { trans } = view;
  if (policy.park_when === 'idle') {
    return trans.__('Idle notebooks are freed after %1', span(policy.idle_timeout_s, trans));
  }
  const after = policy.contended_idle_timeout_s ?? policy.idle_timeout_s;
  return trans.__(
    'Idle notebooks are freed when another needs room, after up to %1',
    span(Math.min(after, policy.idle_timeout_s), trans)
  );
}

/** Turns between freeing idle notebooks always and only for others. */
function Switch(props: { policy: IPolicy; view: IView }): JSX.Element {
  const { policy, view } = props;
  const { affinode, isStale, trans } = view;
  const [isPending, setPending] = React.useState(false);
  const isAlways = policy.park_when === 'idle';
  const isDisabled = isStale || isPending;
  const change = async () => {
    setPending(true);
    try {
      await affinode.changePolicy({ park_when: isAlways ? 'needed' : 'idle' });
    } catch (error) {
      if (!(error instanceof AffinodeError)) {
        throw error;
      }
      void affinode.refresh(); // says whether the user may only look by now
      Notification.warning(errorText(error, trans), { autoClose: 8000 });
    } finally {
      setPending(false);
    }
  };
  return (
    <label
      className="jp-affinode-policySwitch"
      title={trans.__(
        'Free idle notebooks after %1 even if no other needs the room. This lasts until your GPU controller ends, soon after your last kernel and server.',
        span(policy.idle_timeout_s, trans)
      )}
    >
      {trans.__('Always free idle notebooks')}
      <button
        type="button"
        role="switch"
        className="jp-affinode-switch"
        data-control="policy"
        aria-busy={isPending}
        aria-checked={isAlways}
        // A button that is disabled in truth would let the focus fall to the page's body.
        aria-disabled={isDisabled}
        onClick={() => {
          if (!isDisabled) {
            void change();
          }
        }}
      >
        <span />
      </button>
    </label>
  );
}
