import { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { chipPlugin } from './chip';
import { commandsPlugin } from './commands';
import { focusPlugin } from './focus';
import { noticesPlugin } from './notices';
import { panelPlugin } from './panel/plugin';
import { modelPlugin } from './plugin';

export { AffinodeError } from './api';
export * from './status';
export { CommandIDs, IAffinode, IProblem } from './tokens';

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  modelPlugin,
  panelPlugin,
  chipPlugin,
  commandsPlugin,
  noticesPlugin,
  focusPlugin
];

export default plugins;
