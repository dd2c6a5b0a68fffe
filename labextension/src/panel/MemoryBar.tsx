import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { ISegment } from '../memory';
import { IAffinode } from '../tokens';
import { bytes } from '../words';

/** How many hues the style sheet has. */
const HUES = 8;

/** The style class of a kernel's hue. */
export function hueClass(hue: number): string {
  return `jp-mod-hue${hue % HUES}`;
}

/** The style class of a segment: a kernel's own hue, or a fixed one. */
function segmentClass(segment: ISegment, affinode: IAffinode): string {
  return segment.kernelId === undefined
    ? `jp-mod-${segment.kind}`
    : hueClass(affinode.hue(segment.kernelId));
}

/** What a memory bar shows. */
interface IMemoryBarProps {
  affinode: IAffinode;
  /** What the bar is of, for those who do not see it. */
  name: string;
  segments: ISegment[];
  total: number;
  trans: TranslationBundle;
}

/** A bar cut by who uses the memory. */
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

/** The bar's colours with names and numbers. */
export function Legend(props: {
  affinode: IAffinode;
  segments: ISegment[];
  trans: TranslationBundle;
}): JSX.Element {
  return (
    <ul className="jp-affinode-legend">
      {props.segments.map(segment => (
        <li key={segment.key} title={`${segment.label}: ${explanation(segment, props.trans)}`}>
          <span
            className={`jp-affinode-swatch ${segmentClass(segment, props.affinode)}`}
            aria-hidden="true"
          />
          <span className="jp-affinode-legendLabel">{segment.label}</span>
          <span className="jp-affinode-number">{bytes(segment.bytes)}</span>
        </li>
      ))}
    </ul>
  );
}

function explanation(segment: ISegment, trans: TranslationBundle): string {
  switch (segment.kind) {
    case 'unmanaged':
      return trans.__(
        'Other programs, and what the driver keeps for each program. It cannot be moved from here.'
      );
    case 'contexts':
      return trans.__('What the driver keeps for each program. It stays while memory is moved.');
    case 'others':
      return trans.__('Kernels of other servers and people on this machine.');
    case 'kernel':
    case 'free':
      return bytes(segment.bytes);
  }
}
