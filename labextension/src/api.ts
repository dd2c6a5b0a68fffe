import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { IPast } from './history/past';
import { Action, IActionBody, IActivity, IKernel, IPolicy, IStatus } from './status';

/** A question is answered within seconds, else the server hangs: its job is suspended, or the network drops what is sent. */
const ANSWER_MS = 30_000;

/** What is asked for may take long: a hibernation has half an hour. */
const ACTION_MS = 1_900_000;

/** A request that the server refused; `message` says what happened and what to do, for users. */
export class AffinodeError extends Error {
  /** `status` is the HTTP status, 0 when nothing answered; `slug` is the API's short name of the error. */
  constructor(
    readonly status: number,
    readonly slug: string,
    message: string
  ) {
    super(message);
    this.name = 'AffinodeError';
  }
}

/** The server extension's REST API, `<base_url>affinode/api`. */
export class AffinodeApi {
  constructor(private readonly _connection: ServerConnection.ISettings) {}

  /** GET status. */
  status(): Promise<IStatus> {
    return this._request<IStatus>('GET', ['status']);
  }

  /** POST an action on a kernel; the kernel afterwards. Rejects also where nothing could be moved: the user is told. */
  async act(kernelId: string, action: Action, body: IActionBody): Promise<IKernel> {
    const path = ['kernels', encodeURIComponent(kernelId), action];
    const kernel = await this._request<IKernel>('POST', path, body);
    if (kernel?.nothing_moved?.code) {
      throw new AffinodeError(200, kernel.nothing_moved.code, kernel.nothing_moved.text);
    }
    return kernel;
  }

  /** PATCH policy: when idle kernels are freed. */
  changePolicy(change: Partial<IPolicy>): Promise<unknown> {
    return this._request<unknown>('PATCH', ['policy'], change);
  }

  /** GET a kernel's CUDA activity; the shim counts while it is asked for. */
  activity(kernelId: string): Promise<IActivity> {
    return this._request<IActivity>('GET', ['kernels', encodeURIComponent(kernelId), 'activity']);
  }

  /** GET past: where kernels' memory was in the last seconds, at most eight hours. */
  past(seconds: number): Promise<IPast> {
    return this._request<IPast>('GET', ['past'], undefined, `?seconds=${seconds}`);
  }

  /** DELETE a kernel that is kept for another server. */
  endKept(kernelId: string): Promise<unknown> {
    return this._request<unknown>('DELETE', ['kept', encodeURIComponent(kernelId)]);
  }

  private async _request<T>(method: string, path: string[], body?: object, query = ''): Promise<T> {
    const url = URLExt.join(this._connection.baseUrl, 'affinode', 'api', ...path) + query;
    const signal = AbortSignal.timeout(method === 'GET' ? ANSWER_MS : ACTION_MS);
    const init = { method, body: body && JSON.stringify(body), signal };
    let response: Response;
    let answer: unknown;
    try {
      response = await ServerConnection.makeRequest(url, init, this._connection);
      answer = await response.json().catch(() => null);
      signal.throwIfAborted();
    } catch (error) {
      throw new AffinodeError(0, 'unreachable', String(error));
    }
    if (!response.ok) {
      const { error, message } = (answer ?? {}) as { error?: string; message?: string };
      throw new AffinodeError(
        response.status,
        error ?? 'http',
        message ?? `${response.status} ${response.statusText}`
      );
    }
    if (answer === null && response.status !== 204) {
      throw new AffinodeError(
        response.status,
        'no-json',
        'The server’s answer was not understood.'
      );
    }
    return answer as T;
  }
}
