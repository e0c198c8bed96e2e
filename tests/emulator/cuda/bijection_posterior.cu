// The kernels that the library launches, instantiated for the tests; no torch is needed.
#include "cuda/bijection_posterior/noiseless.cuh"
#include "cuda/bijection_posterior/noisy.cuh"

namespace bwt {

template __global__ void noiseless_kernel(NoiselessBatch<float>);
template __global__ void noiseless_kernel(NoiselessBatch<double>);
template __global__ void noisy_kernel(NoisyBatch<double>, RowWriter<float>);
template __global__ void noisy_kernel(NoisyBatch<double>, RowWriter<double>);
template __global__ void noisy_kernel(NoisyBatch<Wide>, RowWriter<float>);
template __global__ void noisy_kernel(NoisyBatch<Wide>, RowWriter<double>);
template __global__ void channel_gradient_kernel(NoisyBatch<double>, const float*, const float*,
                                                 const double*, double*);
template __global__ void channel_gradient_kernel(NoisyBatch<double>, const double*, const double*,
                                                 const double*, double*);
template __global__ void channel_gradient_kernel(NoisyBatch<Wide>, const float*, const float*,
                                                 const double*, double*);
template __global__ void channel_gradient_kernel(NoisyBatch<Wide>, const double*, const double*,
                                                 const double*, double*);

}  // namespace bwt
