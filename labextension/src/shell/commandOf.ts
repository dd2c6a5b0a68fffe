import { CommandIDs } from '../tokens';
import { NamedAction } from '../words';

/** The command of an action. */
export const commandOf: Record<NamedAction, string> = {
  park: CommandIDs.park,
  resume: CommandIDs.resume,
  hold: CommandIDs.hold,
  release: CommandIDs.release,
  hibernate: CommandIDs.hibernate,
  wake: CommandIDs.wake,
  stay: CommandIDs.stay,
  'cancel-wait': CommandIDs.stopWaiting,
  restart: CommandIDs.restartLost,
  end: CommandIDs.endProcess,
  open: CommandIDs.openKernel
};
