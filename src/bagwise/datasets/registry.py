"""What a data home may hold: checksums (sha256) of its files, and where the sets are public."""

# The set, where it is public, and what to do with it.
ADDRESSES = {
    "newsgroups": "https://github.com/InkiInki/data (multi-instance/text-categorization); without "
    "it equivalent sets are rebuilt from scikit-learn's fetch_20newsgroups",
    "mnist": "https://www.openml.org/d/554; scikit-learn downloads it",
    "tracking/david": "https://github.com/whluo/MILTracker_Matlab_Version (its folder david)",
    "tracking/girl": "https://github.com/masa-nudt/KCFDP (its folder Girl)",
    "detection/animals": "https://github.com/datitran/raccoon_dataset and "
    "https://github.com/experiencor/kangaroo",
    "detection/scenes": "https://github.com/lightly-ai/coco128_yolo",
    "detection/bccd": "https://github.com/Shenggan/BCCD_Dataset (its folder BCCD)",
}

CHECKSUMS = {
    "detection/animals.npz": "5ca31f6b2e9fdaa04df715a0d6cd1d995e3fb6023c502263fabce404ed88f796",
    "detection/bccd.npz": "9eeb52aa5d8128b0ebc5fd570107ecd1e18ad8e7fc06a669ed17bba767e21bf3",
    "detection/scenes.npz": "612a3b4326d3605eada2dd6e52018d5b344a9947f481a5489ac257d01d82f37c",
    "mnist.npz": "368a06584f00dd7b70bc8f31feac13470b7a3b9108b2a2e5bb6539f39b34f6ad",
    "newsgroups/alt_atheism.npz": (
        "fcfa5b6af9757a0f116efe5dcdc56ad35d3a5a8b1b9a478100cd17f3a6109c5f"
    ),
    "newsgroups/comp_graphics.npz": (
        "1733a0a4d53bd6843e59126b424c46333348b8e75d838c018980d65cc8fc9218"
    ),
    "newsgroups/comp_os_ms-windows_misc.npz": (
        "706a4c73e25ad37c08a7b7fd7771e6964ac4d12aa9c4ec8972118046e7862990"
    ),
    "newsgroups/comp_sys_ibm_pc_hardware.npz": (
        "759b501d09bd9d48c5122b92f15bbd1e5fd6510f87fc47c88db4b6638b388bee"
    ),
    "newsgroups/comp_sys_mac_hardware.npz": (
        "cb6b2912d64ccdc31b132f02e5c8f45415598e23ad9bd3892f04b263d7e388d7"
    ),
    "newsgroups/comp_windows_x.npz": (
        "bfb00a924cef7eb452df0ef54c7ead684bfb4c3f0faba66162b12b1602fafc42"
    ),
    "newsgroups/misc_forsale.npz": (
        "d3611497acb9d891cdcfb23be6c214b7b348b3769ef1bd2a8fc44000862a08a5"
    ),
    "newsgroups/rec_autos.npz": "0b0e18b679bbee5e9a4ad388af1adfd4af3491de929008c1e65b5a6c95420008",
    "newsgroups/rec_motorcycles.npz": (
        "8b25c6dc08d3e4b5cd1f21d3fad671c2233effba1feafda2c7c3c3d483a95c46"
    ),
    "newsgroups/rec_sport_baseball.npz": (
        "c54b10cc5bf9e07e2bc86eecdd10b727efe7476de02171fdf07872bba2679ab7"
    ),
    "newsgroups/rec_sport_hockey.npz": (
        "2e2fa7f998a1896380c261bc54e55d00a8e18cbeb2fa5df676e36dc84dc610ce"
    ),
    "newsgroups/sci_crypt.npz": "d1497ad55c5714c93967555436f1dbdab046194f388a837313f4cb0d52937ca2",
    "newsgroups/sci_electronics.npz": (
        "892bdb6cbb7e5651f5d27193e0463f0e67b71a9ea4f4857725c8781b83851d3b"
    ),
    "newsgroups/sci_med.npz": "2327feea8fbfec8f436e712ee8eaf492d27ba553c637b63a34a943edd73ed84f",
    "newsgroups/sci_space.npz": "0c21d2034aeed5af9dfb1fd95f506285401a6213dddd9daecee773070425765d",
    "newsgroups/soc_religion_christian.npz": (
        "6a89b746f2db491fce0989df3fbbccd4952ad02eedd0d4414bb8ab38cafed65a"
    ),
    "newsgroups/talk_politics_guns.npz": (
        "7caa0d142a88dd2e9be0181874d870af2038f689dc7211c170dc2ebfdf02c43e"
    ),
    "newsgroups/talk_politics_mideast.npz": (
        "4f7cb9356bf38ba5e35732758eb2520df28b57ac0a286e39d04c6da21c651eaf"
    ),
    "newsgroups/talk_politics_misc.npz": (
        "b9440f0132bfced35af3cb2469ab4dbe91370a1fa0331b54a30d04c01c0cfca6"
    ),
    "newsgroups/talk_religion_misc.npz": (
        "4298f1b5a62f588f3649d4da7839d2d71cc923105955b7a023fa09a47b5447f6"
    ),
    "tracking/david.npz": "291ab27d40e7e77895dd1643b31c15e04cff2279f202d965bdda00dc40aeb42f",
    "tracking/girl.npz": "0e7dcc8a6bffb5dd7ea856af01d31e93a1e2a1dfea1a58dad4abd7bfccbcbf6f",
}
