/* Free memory under cgroups: trees of files instead of /proc and /sys. */
#include "loader/device/memory.h"
#include "tests/unit/leaks.h"
#include "tests/unit/loader_files.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(loader_memory, .init = leaks_before, .fini = leaks_after);

#define V1_MOUNT  "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define V2_MOUNT  "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define CPU_MOUNT "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"

static void tree_init(struct files *tree, const char *cgroup, const char *mountinfo)
{
	files_init(tree);
	files_write_text(tree, "proc/meminfo",
			 "MemTotal:       8000 kB\nMemFree:        1 kB\nMemAvailable:   4000 kB\n");
	files_write_text(tree, "proc/self/cgroup", cgroup);
	files_write_text(tree, "proc/self/mountinfo", mountinfo);
}

static void expect_room(struct files *tree, uint64_t available, uint64_t limit, const char *bound_by)
{
	struct memory_room room;
	struct ipcc_error err = {0};

	cr_assert_eq(memory_room(tree->folder, &room, &err), 0, "%s", err.message);
	cr_expect_eq(room.available_bytes, available, "%lu", (unsigned long)room.available_bytes);
	cr_expect_eq(room.limit_bytes, limit, "%lu", (unsigned long)room.limit_bytes);
	cr_expect_str_eq(room.bound_by, bound_by);
	cr_expect_eq(room.cgroup, strcmp(bound_by, "/proc/meminfo") != 0);
	files_fini(tree);
}

Test(loader_memory, without_cgroups_the_machine_bounds)
{
	struct files tree;

	tree_init(&tree, "", "");
	expect_room(&tree, 4000 * 1024, 8000 * 1024, "/proc/meminfo");
}

Test(loader_memory, a_v2_limit_counts_droppable_cache_as_free)
{
	struct files tree;

	tree_init(&tree, "0::/a/b\n", V2_MOUNT);
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.max", "1000000\n");
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.high", "max\n");
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.current", "700000\n");
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_anon 7\ninactive_file 200000\n");
	expect_room(&tree, 500000, 1000000, "/sys/fs/cgroup/a/b/memory.max");
}

Test(loader_memory, the_tightest_ancestor_bounds)
{
	struct files tree;

	tree_init(&tree, "0::/a/b\n", V2_MOUNT);
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.max", "max\n");
	files_write_text(&tree, "sys/fs/cgroup/a/b/memory.current", "1\n");
	files_write_text(&tree, "sys/fs/cgroup/a/memory.max", "2000000\n");
	files_write_text(&tree, "sys/fs/cgroup/a/memory.high", "1500000\n");
	files_write_text(&tree, "sys/fs/cgroup/a/memory.current", "1400000\n");
	expect_room(&tree, 100000, 1500000, "/sys/fs/cgroup/a/memory.high");
}

Test(loader_memory, usage_above_the_limit_leaves_nothing)
{
	struct files tree;

	tree_init(&tree, "0::/\n", V2_MOUNT);
	files_write_text(&tree, "sys/fs/cgroup/memory.max", "1000\n");
	files_write_text(&tree, "sys/fs/cgroup/memory.current", "5000\n");
	expect_room(&tree, 0, 1000, "/sys/fs/cgroup/memory.max");
}

Test(loader_memory, v1_limits_are_found_beside_an_empty_v2)
{
	struct files tree;

	tree_init(&tree, "9:name=systemd:/\n4:memory:/job/1\n1:cpu:/job\n0::/\n",
		  CPU_MOUNT V1_MOUNT "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
	files_write_text(&tree, "sys/fs/cgroup/unified/cgroup.procs", "1\n");
	files_write_text(&tree, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	files_write_text(&tree, "sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000\n");
	files_write_text(&tree, "sys/fs/cgroup/memory/job/1/memory.limit_in_bytes", "3000000\n");
	files_write_text(&tree, "sys/fs/cgroup/memory/job/1/memory.usage_in_bytes", "1000000\n");
	files_write_text(&tree, "sys/fs/cgroup/memory/job/1/memory.stat",
			 "inactive_file 9\ntotal_inactive_file 400000\n");
	expect_room(&tree, 2400000, 3000000, "/sys/fs/cgroup/memory/job/1/memory.limit_in_bytes");
}

Test(loader_memory, a_container_without_namespace_sees_its_cgroup_as_the_mount)
{
	struct files tree;

	tree_init(&tree, "4:memory,hugetlb:/docker/abc/x\n",
		  "35 31 0:32 /docker/abc /my\\040cg/memory ro - cgroup cgroup rw,hugetlb,memory\n");
	files_write_text(&tree, "my cg/memory/x/memory.limit_in_bytes", "1000\n");
	files_write_text(&tree, "my cg/memory/x/memory.usage_in_bytes", "400\n");
	expect_room(&tree, 600, 1000, "/my cg/memory/x/memory.limit_in_bytes");
}

Test(loader_memory, a_cgroup_outside_the_namespace_falls_back_to_the_mount)
{
	struct files tree;

	tree_init(&tree, "0::/../other\n", V2_MOUNT);
	files_write_text(&tree, "sys/fs/cgroup/memory.max", "1000\n");
	files_write_text(&tree, "sys/fs/cgroup/memory.current", "100\n");
	files_write_text(&tree, "sys/fs/cgroup/other/memory.max", "10\n");
	files_write_text(&tree, "sys/fs/cgroup/other/memory.current", "10\n");
	expect_room(&tree, 900, 1000, "/sys/fs/cgroup/memory.max");
}

Test(loader_memory, too_little_is_refused_with_the_limit_and_the_remedy)
{
	struct files tree;
	struct ipcc_error err = {0};

	tree_init(&tree, "0::/a\n", V2_MOUNT);
	files_write_text(&tree, "proc/meminfo", "MemTotal: 800000000 kB\nMemAvailable: 400000000 kB\n");
	cr_assert_eq(memory_check(tree.folder, (uint64_t)300 << 30, &err), 0, "%s", err.message);
	expect_error(memory_check(tree.folder, (uint64_t)400 << 30, &err), &err, IPCC_NO_MEMORY,
		     "400.0 GiB of memory (and 2.0 GiB of overhead) are needed, 381.5 GiB of 762.9 GiB are available");
	expect_error(memory_check(tree.folder, UINT64_MAX, &err), &err, IPCC_NO_MEMORY, "are available");
	files_write_text(&tree, "sys/fs/cgroup/a/memory.max", "1073741824\n");
	files_write_text(&tree, "sys/fs/cgroup/a/memory.current", "536870912\n");
	expect_error(memory_check(tree.folder, (uint64_t)600 << 20, &err), &err, IPCC_NO_MEMORY,
		     "512.0 MiB are left under the limit of 1.0 GiB in /sys/fs/cgroup/a/memory.max");
	files_fini(&tree);
}

Test(loader_memory, the_real_machine_has_some)
{
	struct memory_room room;
	struct ipcc_error err = {0};

	cr_assert_eq(memory_room("", &room, &err), 0, "%s", err.message);
	cr_assert_gt(room.available_bytes, 0);
	expect_error(memory_room("/nonexistent", &room, &err), &err, IPCC_FAILED, "/proc/meminfo: cannot be read");
}
