import { caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

/** One element for all renderings, which React then leaves as it is: a LabIcon works each time it is rendered. */
export const HEADING_CARET = (
  <caretRightIcon.react tag="span" className="jp-affinode-headingCaret" />
);
