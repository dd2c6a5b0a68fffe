/**
 * All words about the GPU that the Lab shows, from codes and arguments; the server's own English is for the command line.
 *
 * Everything here is pure. `trans` is the part of a translation bundle that is needed. A code that is not known here, as of
 * a newer server, becomes a neutral sentence and is never shown itself.
 */

export * from './actions';
export * from './figures';
export * from './freeing';
export * from './history';
export * from './moves';
export * from './notices';
export * from './reasons';
export * from './refusals';
export * from './states';
export * from './waits';
export * from './warm';
