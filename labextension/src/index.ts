import { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { bannerPlugin } from './notebook/banner';
import { browserTabPlugin } from './notebook/browserTab';
import { chipPlugin } from './notebook/chip';
import { earlyCellPlugin } from './notebook/earlyCell';
import { focusPlugin } from './notebook/focus';
import { missedOutputPlugin } from './notebook/missedOutput';
import { readyPlugin } from './notebook/ready';
import { waitingLinePlugin } from './notebook/waitingLine';
import { announcementsPlugin, noticesPlugin } from './notices/plugin';
import { panelPlugin } from './panel/plugin';
import { modelPlugin } from './plugin';
import { commandsPlugin } from './shell/commands';
import { runningPlugin } from './shell/running';
import { statusBarPlugin } from './shell/statusBar';

export { AffinodeError } from './api';
export * from './status';
export { CommandIDs, IAffinode, IProblem } from './tokens';

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  modelPlugin,
  panelPlugin,
  commandsPlugin,
  chipPlugin,
  bannerPlugin,
  browserTabPlugin,
  noticesPlugin,
  announcementsPlugin,
  focusPlugin,
  missedOutputPlugin,
  earlyCellPlugin,
  waitingLinePlugin,
  readyPlugin,
  statusBarPlugin,
  runningPlugin
];

export default plugins;
