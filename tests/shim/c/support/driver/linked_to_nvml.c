/* As a library that is linked to NVML, and is loaded at some time or other.  */
int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);

int linked_count(unsigned *count);
int linked_count(unsigned *count)
{
	int error = nvmlInit_v2();

	return error ? error : nvmlDeviceGetCount_v2(count);
}
