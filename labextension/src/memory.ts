/** How a memory bar is cut into segments. Pure. */

import { IGpu, IKernel, IKernelOnGpu, INode, ownership } from './status';
import { IWords, title } from './words';

/** One part of a bar. */
export interface ISegment {
  key: string;
  kind: 'kernel' | 'others' | 'contexts' | 'unmanaged' | 'free';
  label: string;
  bytes: number;
  /** The kernel, for its hue. */
  kernelId?: string;
}

/** Memory in use, of how much (null where a GPU does not say), on how many GPUs. */
export interface IUsedMemory {
  used: number;
  total: number | null;
  gpus: number;
}

/** What is in use on all GPUs of a machine. */
export function usedMemory({ gpus }: INode): IUsedMemory {
  const total = gpus.reduce<number | null>(
    (sum, { total_bytes }) => (sum === null || total_bytes === null ? null : sum + total_bytes),
    0
  );
  const used = gpus.reduce((sum, gpu) => sum + gpu.used_bytes, 0);
  return { used: Math.min(used, total ?? used), total, gpus: gpus.length };
}

/** What each kernel of this user has on this GPU, then others, unmanaged and free, as far as known. */
export function gpuSegments(gpu: IGpu, kernels: IKernel[], trans: IWords): ISegment[] {
  const segments: ISegment[] = [];
  let managed = 0;
  for (const kernel of kernels.filter(isOfThisUser)) {
    const share = kernel.gpus.find(share => share.uuid === gpu.uuid);
    const bytes = share ? share.resident_bytes + share.unmovable_bytes : 0;
    if (bytes > 0) {
      managed += bytes;
      const label = title(kernel, trans);
      segments.push({ key: kernel.id, kind: 'kernel', label, bytes, kernelId: kernel.id });
    }
  }
  segments.push(...ofOthers(gpu.managed_bytes - managed, trans));
  if (gpu.context_bytes) {
    const label = trans.__('CUDA contexts');
    segments.push({ key: 'contexts', kind: 'contexts', label, bytes: gpu.context_bytes });
  }
  if (gpu.unmanaged_bytes) {
    const label = trans.__('Not managed');
    segments.push({ key: 'unmanaged', kind: 'unmanaged', label, bytes: gpu.unmanaged_bytes });
  }
  if (gpu.free_bytes !== null) {
    segments.push({ key: 'free', kind: 'free', label: trans.__('Free'), bytes: gpu.free_bytes });
  }
  return segments;
}

/** A GPU's name without the vendor's, which they all share. */
export function gpuModel(gpu: Pick<IGpu, 'name'>): string {
  return gpu.name.replace(/^NVIDIA /, '');
}

/** The same; where there are several GPUs, with its number. */
export function gpuName(
  gpu: Pick<IGpu, 'index' | 'name'>,
  gpus: readonly unknown[],
  trans: IWords
): string {
  return gpus.length > 1 ? trans.__('GPU %1: %2', gpu.index, gpuModel(gpu)) : gpuModel(gpu);
}

/** On which GPU a kernel is, or was before it was moved away; nothing where there is only one to be on. */
export function whichGpu(kernel: IKernel, gpus: IGpu[], trans: IWords): string | null {
  const numbers = (uses: (share: IKernelOnGpu) => boolean) =>
    gpus.filter(gpu => kernel.gpus.some(share => share.uuid === gpu.uuid && uses(share)));
  const here = numbers(share => share.resident_bytes + share.unmovable_bytes > 0);
  const shown = here.length > 0 ? here : numbers(share => share.parked_bytes > 0);
  if (gpus.length < 2 || shown.length === 0) {
    return null;
  }
  const names = shown.map(gpu => gpu.index).join(', ');
  if (here.length > 0) {
    return shown.length > 1 ? trans.__('on GPUs %1', names) : trans.__('on GPU %1', names);
  }
  return shown.length > 1 ? trans.__('was on GPUs %1', names) : trans.__('was on GPU %1', names);
}

/** What parked kernels take of host memory; empty when nothing is parked. */
export function parkedSegments(node: INode, kernels: IKernel[], trans: IWords): ISegment[] {
  const segments: ISegment[] = [];
  let own = 0;
  for (const kernel of kernels.filter(one => isOfThisUser(one) && one.copy_bytes > 0)) {
    own += kernel.copy_bytes;
    const label = title(kernel, trans);
    segments.push({
      key: kernel.id,
      kind: 'kernel',
      label,
      bytes: kernel.copy_bytes,
      kernelId: kernel.id
    });
  }
  return [...segments, ...ofOthers(node.host.copy_bytes - own, trans)];
}

/** The segment of other users; none where they have nothing. */
function ofOthers(bytes: number, trans: IWords): ISegment[] {
  return bytes > 0
    ? [{ key: 'others', kind: 'others', label: trans.__('Other users'), bytes }]
    : [];
}

function isOfThisUser(kernel: IKernel): boolean {
  return ownership(kernel) !== 'others';
}
