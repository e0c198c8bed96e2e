// The emulated CUDA device: what the stub libraries and the Python side of the tests share.
//
// Memory of tensors is what the launch code asked tensors for, as long as they live. Memory of
// cudaMalloc has addresses that the host cannot read, and its bytes elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct Range {
  uintptr_t device;  // address that kernels use
  void* host;        // where the bytes are
  size_t bytes;
  bool writeable;
};

struct Launch {
  const char* kernel;
  uint32_t grid[3], block[3];
  size_t shared_bytes;
  void** arguments;
  const Range* ranges;
  size_t num_ranges;
};

// Returns whether the kernel ran without a fault.
using Launcher = bool (*)(const Launch*);

struct Settings {
  int32_t index;  // of the device that holds the tensors
  int32_t multiprocessors;
  int32_t shared_bytes_per_block;  // that a kernel may ask for
  int32_t failing_malloc;          // so many calls from now, once; 0: none
  int32_t failing_launch;
};

extern Settings emulated_settings;
void emulated_set_launcher(Launcher launcher);

// For graphs: whether the host must not wait, allocate or copy now, and what is told of a memset.
using Refuses = bool (*)();
using Memset = void (*)(void* host, int value, size_t bytes);
void emulated_set_graphs(Refuses refuses, Memset told);

size_t emulated_allocated_bytes();

// Copies to the host that nobody has waited for.
size_t emulated_pending_copies();

// How often the host has waited for the device.
size_t emulated_waits();

void emulated_note_tensor(void* tensor, void* data, size_t bytes, bool writeable);
void emulated_forget_tensor(void* tensor);
void* emulated_stream();

// Returns the device before. Without a guard the current one is not that of the tensors.
int emulated_set_device(int index);
}
