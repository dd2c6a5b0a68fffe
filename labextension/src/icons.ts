import { LabIcon } from '@jupyterlab/ui-components';
import freed from '../style/icons/freed.svg';
import gpu from '../style/icons/gpu.svg';
import hibernated from '../style/icons/hibernated.svg';
import keep from '../style/icons/keep.svg';
import lost from '../style/icons/lost.svg';
import moving from '../style/icons/moving.svg';
import none from '../style/icons/none.svg';
import resident from '../style/icons/resident.svg';
import waiting from '../style/icons/waiting.svg';
import { Residency } from './status';

/** The panel's icon. */
export const gpuIcon = new LabIcon({ name: 'jupyter-affinode:gpu', svgstr: gpu });

/** "Kept on the GPU". */
export const keepIcon = new LabIcon({ name: 'jupyter-affinode:keep', svgstr: keep });

const movingIcon = new LabIcon({ name: 'jupyter-affinode:moving', svgstr: moving });

/** Each state by a shape of its own, so that colour only repeats what the shape says. */
export const residencyIcons: Record<Residency, LabIcon> = {
  none: new LabIcon({ name: 'jupyter-affinode:none', svgstr: none }),
  resident: new LabIcon({ name: 'jupyter-affinode:resident', svgstr: resident }),
  parking: movingIcon,
  parked: new LabIcon({ name: 'jupyter-affinode:freed', svgstr: freed }),
  queued: new LabIcon({ name: 'jupyter-affinode:waiting', svgstr: waiting }),
  resuming: movingIcon,
  lost: new LabIcon({ name: 'jupyter-affinode:lost', svgstr: lost }),
  hibernated: new LabIcon({ name: 'jupyter-affinode:hibernated', svgstr: hibernated })
};
