/* A driver that knows as many GPUs as FAKE_GPUS says, for the choice of cuda:local: libcuda.so.1 of the tests. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetPCIBusId(char *text, int len, int device);

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("FAKE_GPUS") == NULL ? 100 : 0; /* no device */
}

int cuDeviceGetCount(int *n)
{
    *n = atoi(getenv("FAKE_GPUS"));
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetPCIBusId(char *text, int len, int device)
{
    snprintf(text, (size_t)len, "0000:%02x:00.0", 0x17 + device);
    return 0;
}
