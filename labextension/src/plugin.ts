import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { AffinodeModel } from './model';
import { readSettings } from './settings';
import { IAffinode } from './tokens';

/** Provides the status store and reads the settings into it. */
export const modelPlugin: JupyterFrontEndPlugin<IAffinode> = {
  id: 'jupyter-affinode:model',
  description: "Provides the GPU state of the machine's kernels, from the server's events.",
  autoStart: true,
  provides: IAffinode,
  optional: [ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ): IAffinode => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    const model = new AffinodeModel(app.serviceManager, trans);
    void model.refresh();
    registry
      ?.load(modelPlugin.id)
      .then(settings => {
        const take = () => {
          model.settings = readSettings(settings);
        };
        settings.changed.connect(take);
        take();
      })
      .catch(reason => {
        console.error(
          'The settings of jupyter-affinode could not be read; its defaults are used.',
          reason
        );
      });
    return model;
  }
};
