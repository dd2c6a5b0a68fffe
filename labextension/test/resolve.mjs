// JupyterLab's packages import their own files without an ending, as bundlers allow and Node.js does not.
import { registerHooks } from 'node:module';

registerHooks({
  resolve(specifier, context, next) {
    try {
      return next(specifier, context);
    } catch (error) {
      if (error.code === 'ERR_MODULE_NOT_FOUND' && specifier.startsWith('.')) {
        return next(`${specifier}.js`, context);
      }
      throw error;
    }
  }
});
