import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { IAffinode } from '../../tokens';
import { warmKernelText, warmPoolText } from '../../words';
import { Section } from '../Section';

/** Kernels that no notebook has had yet, by kernelspec: how many are ready, what they take, when they were made. */
export function WarmKernels(props: {
  affinode: IAffinode;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { affinode, trans } = props;
  const [isOpen, setOpen] = React.useState(true);
  const pools = affinode.status?.warm ?? [];
  return pools.length === 0 ? null : (
    <Section
      count={pools.reduce((sum, pool) => sum + pool.ready, 0)}
      id="warm"
      isOpen={isOpen}
      onToggle={() => setOpen(!isOpen)}
      title={trans.__('Ready for new notebooks')}
    >
      <ul className="jp-affinode-kernels">
        {pools.map(pool => (
          <li key={pool.name} className="jp-affinode-keptKernel" data-kernelspec={pool.name}>
            <span className="jp-affinode-keptName" title={pool.name}>
              <bdi>{pool.display_name}</bdi>
            </span>
            <span className="jp-affinode-keptSince">{warmPoolText(pool, trans)}</span>
            {pool.kernels.map(kernel => (
              <span key={kernel.id} className="jp-affinode-keptSince">
                {warmKernelText(kernel, trans)}
              </span>
            ))}
            {pool.failed !== null && (
              <details className="jp-affinode-keptSince">
                <summary>{trans.__('How its prelude failed')}</summary>
                <pre className="jp-affinode-failed">{pool.failed}</pre>
              </details>
            )}
          </li>
        ))}
      </ul>
    </Section>
  );
}
