import { TranslationBundle } from '@jupyterlab/translation';
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

/** No status: why, and what helps. */
export function Problem(props: {
  affinode: IAffinode;
  problem: IProblem;
  trans: TranslationBundle;
}): JSX.Element {
  const { affinode, problem, trans } = props;
  return (
    <Empty title={headline(problem, trans)} role="alert">
      <p>{problem.message}</p>
      <Remedy problem={problem} trans={trans} />
      <button className="jp-affinode-button" onClick={() => void affinode.refresh()}>
        {trans.__('Look again')}
      </button>
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
    case 'version':
      return trans.__('Versions differ');
  }
}

function Remedy(props: { problem: IProblem; trans: TranslationBundle }): JSX.Element | null {
  const { problem, trans } = props;
  if (problem.kind === 'missing') {
    return (
      <>
        <p>
          {trans.__(
            'Install it there, in the same environment as JupyterLab, and restart the server:'
          )}
        </p>
        <code>pip install jupyter-affinode</code>
      </>
    );
  }
  if (problem.kind === 'controller') {
    return (
      <>
        <p>{trans.__('Notebooks run on as they are; no GPU is freed meanwhile. What is wrong:')}</p>
        <code>jupyter affinode doctor</code>
      </>
    );
  }
  return null;
}
