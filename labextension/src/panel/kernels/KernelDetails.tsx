import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { canPark, endable, offered, remedies } from '../../actions';
import { whichGpu } from '../../memory';
import { ActionButton } from '../../shell/ActionButton';
import { commandOf } from '../../shell/commandOf';
import { IKernel, ILastMove, ownership } from '../../status';
import {
  actionLabel,
  actionOn,
  aged,
  busyText,
  bytes,
  depthRefusalText,
  estimateText,
  freedText,
  givesText,
  hibernationRefusal,
  imageWarnings,
  hostMemory,
  keptText,
  lastMoveText,
  lostText,
  moveText,
  onGpu,
  ramText,
  reasonText,
  refusalText,
  resumeEstimateText,
  stateText,
  stuckText,
  title,
  unmovableText,
  waitText
} from '../../words';
import { Activity } from './Activity';
import { KeepUntil } from './KeepUntil';
import { face, Ticking } from './Ticking';
import { IView } from '../view';

interface IDetailsProps {
  kernel: IKernel;
  view: IView;
}

/** What there is to know about a kernel, and what can be done. */
export function Details(props: IDetailsProps): JSX.Element {
  const { kernel, view } = props;
  const { trans } = view;
  const [isActivityShown, showActivity] = React.useState(false);
  const kept = keptText(kernel, trans);
  const state = kernel.move ? moveText(kernel.move, trans) : stateText(kernel, trans);
  const isWaiting = kernel.residency === 'queued';
  const isLost = kernel.residency === 'lost';
  const mayCount = kernel.own && kernel.calls !== null && !isWaiting && !isLost;
  const actions = offered(kernel);
  return (
    <div className="jp-affinode-details">
      {isWaiting ? (
        <Wait {...props} />
      ) : (
        <div className="jp-affinode-state">{kept ? trans.__('%1, %2', state, kept) : state}</div>
      )}
      <Stuck {...props} />
      {isLost && <div className="jp-affinode-muted">{lostText(trans)}</div>}
      <Facts {...props} />
      <Refusals {...props} />
      {(actions.length > 0 || mayCount) && (
        <div className="jp-affinode-buttons">
          {isWaiting && <Remedies {...props} />}
          {actions.map((action, index) => (
            <ActionButton
              key={action}
              action={action}
              commands={view.commands}
              kernel={kernel}
              slot={`action${index}`}
              trans={trans}
            />
          ))}
          <KeepUntil kernel={kernel} view={view} />
          {mayCount && (
            <Button
              small
              minimal
              type="button"
              className="jp-affinode-button"
              data-control="activity"
              aria-expanded={isActivityShown}
              aria-label={trans.__('CUDA calls: %1', title(kernel, trans))}
              onClick={() => showActivity(!isActivityShown)}
            >
              {trans.__('CUDA calls')}
            </Button>
          )}
        </div>
      )}
      {isActivityShown && mayCount && <Activity kernel={kernel} view={view} />}
    </div>
  );
}

/** Its place, why it waits, and for how much longer at most. */
function Wait(props: IDetailsProps): JSX.Element {
  const { kernel, view } = props;
  const { nameOf, trans } = view;
  const isSaid = kernel.wait?.code === 'computing'; // the same kernel need not be named twice
  return (
    <div className="jp-affinode-wait">
      <span className="jp-affinode-state">{stateText(kernel, trans)}</span>
      <span>{waitText(kernel.wait, nameOf, trans)}</span>
      <span>{estimateText(isSaid ? { ...kernel, wait: null } : kernel, nameOf, trans)}</span>
    </div>
  );
}

/** What the user can do about the kernels in the way. */
function Remedies(props: IDetailsProps): JSX.Element {
  const { kernel, view } = props;
  const { commands, trans } = view;
  const found = remedies(kernel, id => view.affinode.kernel(id));
  const resolving = found.filter(({ action }) => action !== 'open'); // its row is here already
  const size = resolving.reduce((sum, remedy) => sum + onGpu(remedy.kernel), 0);
  return (
    <>
      {resolving.length > 1 && (
        <Button
          small
          type="button"
          className="jp-affinode-button"
          data-control="remedies"
          onClick={() => {
            for (const { action, kernel: other } of resolving) {
              void commands.execute(commandOf[action], { kernelId: other.id });
            }
          }}
        >
          {trans.__('All of these (%1)', bytes(size))}
        </Button>
      )}
      {resolving.map(({ action, kernel: other }) => (
        <ActionButton
          key={`${action} ${other.id}`}
          named
          action={action}
          commands={view.commands}
          kernel={other}
          label={trans.__(
            '%1 (%2)',
            actionOn(action, title(other, trans), trans),
            bytes(onGpu(other))
          )}
          slot={`${action} ${other.id}`}
          trans={trans}
        />
      ))}
    </>
  );
}

/** On which GPU, what happens next, and what happened last. */
function Facts(props: IDetailsProps): JSX.Element {
  const { kernel, view } = props;
  const { affinode, trans } = view;
  const reason =
    ownership(kernel) === 'others' || kernel.residency === 'none' // its words are for its user; it is nowhere
      ? null
      : reasonText(kernel.reason_code, kernel.reason_args, trans);
  const facts = [
    whichGpu(kernel, view.node.gpus, trans),
    busyText(kernel, trans),
    hostMemory(kernel, trans),
    ramText(kernel, trans),
    canPark(kernel) ? trans.__('Free %1', givesText(kernel, trans)) : null,
    kernel.residency === 'parked' ? resumeEstimateText(kernel.resume_estimate_s, trans) : null
  ].filter((fact): fact is string => fact !== null);
  const age = affinode.age(kernel.id);
  const aged = (move: ILastMove) => ({
    ...move,
    ago_s: move.ago_s === null ? null : move.ago_s + age
  });
  return (
    <>
      <Freed {...props} />
      {facts.length > 0 && <div className="jp-affinode-muted">{facts.join(' · ')}</div>}
      {reason !== null && kernel.residency !== 'queued' && (
        <div className="jp-affinode-muted">{trans.__('Why: %1', reason)}</div>
      )}
      {kernel.last_park && (
        <div className="jp-affinode-muted">
          {lastMoveText('park', aged(kernel.last_park), trans)}
        </div>
      )}
      {kernel.last_resume && (
        <div className="jp-affinode-muted">
          {lastMoveText('resume', aged(kernel.last_resume), trans)}
        </div>
      )}
      {kernel.unmovable.length > 0 && (
        <ul className="jp-affinode-unmovable" aria-label={trans.__('Stays on the GPU')}>
          {kernel.unmovable.map(unmovable => (
            <li key={unmovable.reason}>
              {trans.__(
                '%1 cannot move: %2',
                bytes(unmovable.bytes),
                unmovableText(unmovable.reason, trans)
              )}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** When its memory may be freed, by a clock that ticks. */
function Freed(props: IDetailsProps): JSX.Element | null {
  const { kernel, view } = props;
  const { affinode, isStale, node, trans } = view;
  const text = React.useCallback(() => {
    const now = isStale ? kernel : aged(kernel, affinode.age(kernel.id));
    return freedText(now, node, left => face(Math.ceil(left)), trans) ?? '';
  }, [affinode, isStale, kernel, node, trans]);
  return text() === '' ? null : (
    <div className="jp-affinode-muted">
      <Ticking text={text} />
    </div>
  );
}

/** What could not be done, and why. */
function Refusals(props: IDetailsProps): JSX.Element {
  const { kernel, view } = props;
  const { trans } = view;
  const refusal = refusalText(kernel.refusal_code, kernel.refusal_args, trans);
  const notMoved = hibernationRefusal(kernel, trans);
  const depth =
    kernel.depth === 'memory' ? depthRefusalText(kernel.depth_refusal_code, trans) : null;
  return (
    <>
      {depth !== null && (
        <div className="jp-affinode-muted">
          {trans.__('Its CUDA context stays on the GPU: %1', depth)}
        </div>
      )}
      {refusal !== null && (
        <div className="jp-affinode-refusal">{trans.__('Not freed: %1', refusal)}</div>
      )}
      {notMoved !== null && <div className="jp-affinode-refusal">{notMoved}</div>}
      {imageWarnings(kernel.hibernation, trans).map(warning => (
        <div key={warning} className="jp-affinode-refusal">
          {warning}
        </div>
      ))}
    </>
  );
}

/** Processes that can make no progress any more, each with its reason, and a way to end it where one may. */
function Stuck(props: IDetailsProps): JSX.Element | null {
  const { kernel, view } = props;
  const { trans } = view;
  const stuck = kernel.processes.filter(process => process.stuck);
  const mayEnd = endable(kernel);
  return stuck.length === 0 ? null : (
    <ul className="jp-affinode-stuck" aria-label={trans.__('Stuck')}>
      {stuck.map(process => (
        <li key={process.number}>
          <div className="jp-affinode-refusal">
            {trans.__(
              'Stuck (pid %1): %2',
              process.pid,
              stuckText(process.stuck?.reason ?? '', trans)
            )}
          </div>
          {mayEnd.includes(process) && (
            <div className="jp-affinode-buttons">
              <ActionButton
                action="end"
                args={{ process: process.number }}
                commands={view.commands}
                kernel={kernel}
                label={trans.__('%1 %2', actionLabel('end', trans), process.pid)}
                slot={`end ${process.number}`}
                trans={trans}
              />
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}
