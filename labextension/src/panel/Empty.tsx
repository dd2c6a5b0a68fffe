import { TranslationBundle } from '@jupyterlab/translation';
import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { IAffinode, IProblem } from '../tokens';

/** What there is to say when there is nothing to show, and what to do about it. */
export function Empty(props: {
  title: string;
  children?: React.ReactNode;
  role?: 'alert' | 'status';
}): JSX.Element {
  return (
    <div className="jp-affinode-empty" role={props.role}>
      <h3>{props.title}</h3>
      {props.children}
    </div>
  );
}

/** What is as it is to be: nothing has failed. */
const NO_ALERTS: IProblem['kind'][] = ['starting', 'disabled', 'remote'];

/** What is wrong, and what helps; where there is an old status, since when it is one. */
export function Problem(props: {
  affinode: IAffinode;
  problem: IProblem;
  trans: TranslationBundle;
}): JSX.Element {
  const { affinode, problem, trans } = props;
  const isVersion = problem.kind === 'version';
  return (
    <Empty
      title={headline(problem, trans)}
      role={NO_ALERTS.includes(problem.kind) ? 'status' : 'alert'}
    >
      <p>{problem.message}</p>
      {affinode.stale && affinode.updated !== null && (
        <p>
          {trans.__('What is shown is from %1.', new Date(affinode.updated).toLocaleTimeString())}
        </p>
      )}
      <Remedy problem={problem} trans={trans} />
      <Button
        small
        type="button"
        className="jp-affinode-button"
        data-control="again"
        onClick={() => (isVersion ? window.location.reload() : void affinode.refresh())}
      >
        {isVersion ? trans.__('Reload') : trans.__('Refresh')}
      </Button>
    </Empty>
  );
}

function headline(problem: IProblem, trans: TranslationBundle): string {
  switch (problem.kind) {
    case 'missing':
      return trans.__('Server part missing');
    case 'refused':
      return trans.__('Not allowed');
    case 'unreachable':
      return trans.__('Server away');
    case 'controller':
      return trans.__('GPU controller unavailable');
    case 'starting':
      return trans.__('Starting');
    case 'disabled':
      return trans.__('Switched off');
    case 'remote':
      return trans.__('Your kernels run on another machine');
    case 'version':
      return trans.__('Versions differ');
  }
}

function Remedy(props: { problem: IProblem; trans: TranslationBundle }): JSX.Element | null {
  const { problem, trans } = props;
  if (problem.kind !== 'missing' && problem.kind !== 'controller') {
    return null;
  }
  return (
    <>
      <p>
        {problem.kind === 'missing'
          ? trans.__(
              'It has to be installed in the environment of that server. To see what is missing there, run:'
            )
          : trans.__(
              'Notebooks run on as they are; no GPU is freed meanwhile. To see what is wrong, run:'
            )}
      </p>
      <code tabIndex={0}>jupyter affinode doctor</code>
    </>
  );
}
