// libc10_cuda, of which bwt._C_cuda uses nothing itself: linking against it must still work.
