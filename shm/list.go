package shm
