/* The _ptsz and _ptds variants: the default stream is the thread's own.  */
#ifndef SIM_STREAMS_DEFAULT_H
#define SIM_STREAMS_DEFAULT_H

#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

#endif
