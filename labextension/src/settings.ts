import { ISettingRegistry } from '@jupyterlab/settingregistry';

/** The user's settings, as `schema/model.json` describes them. */
export interface ISettings {
  /** Seconds between two looks while the panel is visible. */
  refreshInterval: number;
  /** Whether to tell which notebook waits for the GPU, has it again, or made room, and what was refused. */
  showNotifications: boolean;
  /** Whether the panel lists the kernels of other servers and users. */
  showOtherKernels: boolean;
  /** Minutes that "Keep" asks for. */
  holdMinutes: number;
}

/** What holds without a settings registry. */
export const DEFAULT_SETTINGS: ISettings = {
  refreshInterval: 6,
  showNotifications: true,
  showOtherKernels: true,
  holdMinutes: 60
};

/** Read the settings; the registry has validated them against the schema. */
export function readSettings(settings: ISettingRegistry.ISettings): ISettings {
  return { ...DEFAULT_SETTINGS, ...(settings.composite as Partial<ISettings>) };
}
