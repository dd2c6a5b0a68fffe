/** Which stretch of which lane the pointer or the keyboard is at. Pure. */

import { ILane, IPast, IPastGpu, ISpan, spans } from './past';

/** A stretch of a lane. */
export interface IPlace {
  gpu: number;
  lane: number;
  span: number;
}

/** What is at a place; null where there is nothing any more. */
export function found(
  past: IPast,
  place: IPlace
): { gpu: IPastGpu; lane: ILane; span: ISpan } | null {
  const gpu = past.gpus[place.gpu];
  const lane = gpu?.lanes[place.lane];
  const span = lane && spans(lane, past.until)[place.span];
  return span ? { gpu, lane, span } : null;
}

/** The stretch of a lane, named "gpu lane", at a moment; null where there is none. */
export function pointed(past: IPast, name: string, at: number): IPlace | null {
  const [gpu, lane] = name.split(' ').map(Number);
  const there = past.gpus[gpu]?.lanes[lane];
  const span = there
    ? spans(there, past.until).findIndex(each => at >= each.from && at < each.to)
    : -1;
  return span < 0 ? null : { gpu, lane, span };
}

/** Where a key leads to; null: nowhere any more; undefined: the key is not for the picture. */
export function moved(past: IPast, place: IPlace | null, key: string): IPlace | null | undefined {
  const lanes = past.gpus.flatMap((gpu, number) =>
    gpu.lanes.flatMap((lane, index) => {
      const all = spans(lane, past.until);
      return all.length > 0 ? [{ gpu: number, lane: index, all }] : [];
    })
  );
  const isArrow = ['ArrowDown', 'ArrowUp', 'ArrowLeft', 'ArrowRight', 'Home', 'End'].includes(key);
  if (key === 'Escape' && place !== null) {
    return null;
  }
  if (!isArrow || lanes.length === 0) {
    return undefined;
  }
  const number = lanes.findIndex(each => each.gpu === place?.gpu && each.lane === place.lane);
  if (place === null || number < 0) {
    return { gpu: lanes[0].gpu, lane: lanes[0].lane, span: lanes[0].all.length - 1 };
  }
  const { all } = lanes[number];
  const to = (span: number) => ({ ...place, span: Math.min(Math.max(span, 0), all.length - 1) });
  switch (key) {
    case 'ArrowLeft':
      return to(place.span - 1);
    case 'ArrowRight':
      return to(place.span + 1);
    case 'Home':
      return to(0);
    case 'End':
      return to(all.length - 1);
  }
  const next = lanes[number + (key === 'ArrowDown' ? 1 : -1)] ?? lanes[number];
  // In another lane, what was at the same time.
  const at = all[place.span]?.from ?? past.until;
  const same = next.all.findIndex(each => each.to > at);
  return { gpu: next.gpu, lane: next.lane, span: same < 0 ? next.all.length - 1 : same };
}
