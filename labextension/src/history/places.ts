/** Which stretch of which lane the pointer or the keyboard is at. Pure. */

import { ILane, IPast, IPastGpu, ISpan, spans } from './past';

/** A moment of a kernel's lane on a GPU: it stays the same while lanes and stretches come and go. */
export interface IPlace {
  gpu: string;
  kernel: string;
  at: number;
}

/** What is at a place; null where there is nothing any more. */
export function found(
  past: IPast,
  place: IPlace
): { gpu: IPastGpu; lane: ILane; span: ISpan } | null {
  const gpu = past.gpus.find(each => each.uuid === place.gpu);
  const lane = gpu?.lanes.find(each => each.kernel_id === place.kernel);
  const all = lane ? spans(lane, past.until) : [];
  return gpu && lane && all.length > 0 ? { gpu, lane, span: all[stretchAt(all, place.at)] } : null;
}

/** The stretch at a moment, or the last before it, or else the first. */
export function stretchAt(all: readonly ISpan[], at: number): number {
  const after = all.findIndex(each => each.from > at);
  return after < 0 ? all.length - 1 : Math.max(0, after - 1);
}

/** A moment of the lane named "gpu lane"; null where nothing is drawn there. */
export function pointed(past: IPast, name: string, at: number): IPlace | null {
  const [number, index] = name.split(' ').map(Number);
  const gpu = past.gpus[number];
  const lane = gpu?.lanes[index];
  const isDrawn = lane && spans(lane, past.until).some(each => at >= each.from && at < each.to);
  return isDrawn ? { gpu: gpu.uuid, kernel: lane.kernel_id, at } : null;
}

/** Where a key leads to; null: nowhere any more; undefined: the key is not for the picture. */
export function moved(past: IPast, place: IPlace | null, key: string): IPlace | null | undefined {
  const lanes = past.gpus.flatMap(gpu =>
    gpu.lanes.flatMap(lane => {
      const all = spans(lane, past.until);
      return all.length > 0 ? [{ gpu: gpu.uuid, kernel: lane.kernel_id, all }] : [];
    })
  );
  const isArrow = ['ArrowDown', 'ArrowUp', 'ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(key);
  if (key === 'Escape' && place !== null) {
    return null;
  }
  if (!isArrow || lanes.length === 0) {
    return undefined;
  }
  const number = lanes.findIndex(each => each.gpu === place?.gpu && each.kernel === place.kernel);
  if (place === null || number < 0) {
    return { gpu: lanes[0].gpu, kernel: lanes[0].kernel, at: place?.at ?? past.until };
  }
  const { all } = lanes[number];
  const here = stretchAt(all, place.at);
  switch (key) {
    case 'ArrowLeft':
      return { ...place, at: all[Math.max(here - 1, 0)].from };
    case 'ArrowRight':
      return { ...place, at: all[Math.min(here + 1, all.length - 1)].from };
    case 'Home':
      return { ...place, at: past.since };
    case 'End':
      return { ...place, at: past.until };
  }
  // In another lane, what was at the same time.
  const next = lanes[number + (key === 'ArrowDown' ? 1 : -1)] ?? lanes[number];
  return { gpu: next.gpu, kernel: next.kernel, at: place.at };
}
