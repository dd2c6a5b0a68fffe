import { TranslationBundle } from '@jupyterlab/translation';
import { Button } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { IKeptKernel } from '../../status';
import { CommandIDs, IAffinode } from '../../tokens';
import { bytes, imageWarnings, keptForText, keptTitle } from '../../words';
import { Section } from '../Section';

/** Kernels that ran on without a server and that no notebook shows: what they are, and what opens and ends them. */
export function KeptKernels(props: {
  affinode: IAffinode;
  commands: CommandRegistry;
  shownKernels: ReadonlySet<string>;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { affinode, commands, shownKernels, trans } = props;
  const [isOpen, setOpen] = React.useState(true);
  const kept = affinode.status?.kept.filter(({ id }) => !shownKernels.has(id)) ?? [];
  return kept.length === 0 ? null : (
    <Section
      count={kept.length}
      id="kept"
      isOpen={isOpen}
      onToggle={() => setOpen(!isOpen)}
      title={trans.__('Without a notebook')}
    >
      <ul className="jp-affinode-kernels">
        {kept.map(each => (
          <Row key={each.id} affinode={affinode} commands={commands} kernel={each} trans={trans} />
        ))}
      </ul>
    </Section>
  );
}

function Row(props: {
  affinode: IAffinode;
  commands: CommandRegistry;
  kernel: IKeptKernel;
  trans: TranslationBundle;
}): JSX.Element {
  const { affinode, commands, kernel, trans } = props;
  const name = keptTitle(kernel, trans);
  const size = affinode.kernel(kernel.id)?.footprint_bytes ?? 0;
  const pending = affinode.pending(kernel.id);
  const args = { kernelId: kernel.id };
  const button = (label: string, command: string) => (
    <Button
      small
      type="button"
      className="jp-affinode-button"
      data-control={command}
      aria-disabled={!commands.isEnabled(command, args)}
      aria-label={`${label}: ${name}`}
      onClick={() => {
        if (commands.isEnabled(command, args)) {
          void commands.execute(command, args);
        }
      }}
    >
      {label}
    </Button>
  );
  return (
    <li className="jp-affinode-keptKernel" aria-busy={pending !== null} data-kernel-id={kernel.id}>
      <span className="jp-affinode-keptName" title={kernel.path ?? name}>
        <bdi>{name}</bdi>
      </span>
      {size > 0 && <span className="jp-affinode-size">{bytes(size)}</span>}
      <span className="jp-affinode-keptSince">
        {pending
          ? trans.__('Ending…')
          : [keptForText(kernel, trans), ...imageWarnings(kernel, trans)].join('; ')}
      </span>
      <span className="jp-affinode-buttons">
        {kernel.here && button(trans.__('Open'), CommandIDs.openKernel)}
        {button(trans.__('End kernel'), CommandIDs.endKernel)}
      </span>
    </li>
  );
}
