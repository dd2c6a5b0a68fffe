import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { ISegment } from '../../memory';
import { IAffinode } from '../../tokens';
import { bytes } from '../../words';
import { hueClass } from '../view';

/** The style class of a segment: a kernel's own hue, or a fixed one. */
export function segmentClass(segment: ISegment, affinode: IAffinode): string {
  return segment.kernelId === undefined
    ? `jp-mod-${segment.kind}`
    : hueClass(affinode.hue(segment.kernelId));
}

/** What a memory bar shows. */
interface IMemoryBarProps {
  affinode: IAffinode;
  /** What the bar is of, for screen readers. */
  name: string;
  segments: ISegment[];
  total: number;
  trans: TranslationBundle;
}

/** A bar of memory in segments, one for each use. */
export function MemoryBar(props: IMemoryBarProps): JSX.Element {
  const { affinode, name, segments, total, trans } = props;
  const said = segments.map(segment => `${segment.label} ${bytes(segment.bytes)}`).join(', ');
  return (
    <div
      className="jp-affinode-bar"
      role="img"
      aria-label={trans.__('%1, %2 in all: %3', name, bytes(total), said)}
    >
      {segments.map(segment => (
        <span
          key={segment.key}
          className={`jp-affinode-segment ${segmentClass(segment, affinode)}`}
          style={{ flexGrow: total > 0 ? segment.bytes / total : 0 }}
          title={`${segment.label}: ${bytes(segment.bytes)}`}
        />
      ))}
    </div>
  );
}
