import { caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

/** One element for all renderings, which React then leaves as it is: a LabIcon works each time it is rendered. */
const HEADING_CARET = <caretRightIcon.react tag="span" className="jp-affinode-headingCaret" />;

/** A heading that opens and closes what is below it. */
export function Section(props: {
  children: React.ReactNode;
  className?: string;
  count?: number;
  id: string;
  isOpen: boolean;
  /** What can be done with all that is in it at once. */
  offer?: JSX.Element | null;
  onToggle: () => void;
  title: string;
}): JSX.Element {
  const { children, className = '', count, isOpen, offer, onToggle, title } = props;
  const id = `jp-affinode-section-${props.id}`;
  return (
    <section className={`jp-affinode-section ${className}`} aria-labelledby={id}>
      <div className="jp-affinode-head">
        <h3 className="jp-affinode-heading">
          <button
            type="button"
            id={id}
            data-control={`section ${props.id}`}
            aria-expanded={isOpen}
            onClick={onToggle}
          >
            {HEADING_CARET}
            {title}
            {count !== undefined && <span className="jp-affinode-count">{count}</span>}
          </button>
        </h3>
        {offer}
      </div>
      {isOpen && children}
    </section>
  );
}
