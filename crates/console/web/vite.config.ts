// Builds the console into dist/ with fixed names; the crate around this folder embeds them.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/console/",
  build: {
    // `pack.mjs` copies what changed into dist/.
    outDir: "build",
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app[extname]", codeSplitting: false },
    },
  },
});
