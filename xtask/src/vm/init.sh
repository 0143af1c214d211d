#!/bin/busybox sh
# The first process of the emulated machine: sets it up as a node is, runs /jobs, ends the machine.
export PATH=/bin HOME=/root
if [ "$1" != set-up ]; then
  mount -t proc proc /proc
  echo "init: user space after $(cut -d' ' -f1 /proc/uptime) s"
  for module in /modules/*.ko; do insmod "$module"; done
  # A bind mount of the first root, moved over it, with all other mounts in it: who enters a
  # container's mount namespace lands on the topmost mount of its root.
  mount --bind / /new
  umount /proc
  cd /new
  mount --move . /
  exec chroot . /init set-up
fi
cd /
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs -o size=75% skep-test /skep-test
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
  echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
done
hostname vm
ip link set lo up
echo "init: $(uname -r), controllers: $(cat /sys/fs/cgroup/cgroup.subtree_control)"
. /jobs
echo "init: ends after $(cut -d' ' -f1 /proc/uptime) s"
# The emulator is told to end where the machine would boot again.
reboot -f
