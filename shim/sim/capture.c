#include "capture.h"
CUresult capture_operation(CUstream s, struct operation *o){(void)s;(void)o;return CUDA_ERROR_NOT_FOUND;}
CUresult capture_record_event(CUstream s, CUevent e){(void)s;(void)e;return CUDA_ERROR_NOT_FOUND;}
CUresult capture_wait_event(CUstream s, CUevent e){(void)s;(void)e;return CUDA_ERROR_NOT_FOUND;}
void capture_forget_event(CUevent e){(void)e;}
bool capture_active(CUstream s){(void)s;return false;}
CUresult capture_forbids(CUstream s){(void)s;return 0;}
CUresult capture_forbids_event(CUevent s){(void)s;return 0;}
CUresult capture_forbids_context(CUcontext s){(void)s;return 0;}
CUresult capture_unsafe(void){return 0;}
void capture_abandon(CUstream s){(void)s;}
